"""Detects the kind of a checkpoint, and opens it.

    a folder with manifest.json        a universal checkpoint
    a folder with metadata.json and common.pt      Megatron's torch_dist
    a folder with .metadata            torch DCP
    a folder of such folders           torch DCP: a model's and an optimizer's, side by side
    a folder with zero_pp_rank_*       DeepSpeed, one tag
    a folder with `latest`             DeepSpeed: the tag that it names
    a folder with latest_checkpointed_iteration.txt    Megatron: the iteration that it names
    a folder of steps                  torch DCP: the one with the highest number
    a folder with *.safetensors        Hugging Face, where it is none of these

Invariant: a path that fits two kinds, or none, is refused with a list of the kinds.
"""

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files.regular_files import RegularFiles
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import Names
from wattmesh.reconfig.universal.sources.dcp import beside
from wattmesh.reconfig.universal.sources.dcp.dcp import open_dcp
from wattmesh.reconfig.universal.sources.dcp.metadata import METADATA
from wattmesh.reconfig.universal.sources.deepspeed.deepspeed import open_deepspeed
from wattmesh.reconfig.universal.sources.deepspeed.grid import is_deepspeed, is_without_zero
from wattmesh.reconfig.universal.sources.huggingface import is_huggingface, open_huggingface
from wattmesh.reconfig.universal.sources.own import is_universal, open_own
from wattmesh.reconfig.universal.sources.source import NO_CHOICES, Choices, Source
from wattmesh.reconfig.universal.sources.torch_dist.megatron import is_megatron, open_megatron

LATEST = "latest"
ITERATION = "latest_checkpointed_iteration.txt"
_TAG_NBYTES = 4096
_NAME = 255

_NOTHING = Declared()


def open_source(
    path: Path,
    declared: Declared = _NOTHING,
    names: Names | None = None,
    choices: Choices = NO_CHOICES,
) -> Source:
    """Detect the kind of a checkpoint and open it; `Source.described` names the kind.

    Args:
        path: the checkpoint's folder, or one that holds checkpoints (see above).
        declared: layout rules, renames, tied names and slots of a foreign source.
        names: prefixes of a DCP folder's keys, if they cannot be proven from the keys.
        choices: what the folder leaves open.

    Raises:
        InputInvalid: it holds no checkpoint, more than one kind, or an unsupported one.
        CheckpointDamaged: a file of it is missing or differs from its digest.
    """
    allowance = Allowance()
    try:
        folder, kind = locate(path, allowance)
        _refuse_choices(folder, kind, choices)
        if kind == "dcp":
            return open_dcp(folder, declared, names, allowance, choices)
        return _opened(folder, kind, declared, allowance, choices)
    except MemoryError as error:
        raise InputInvalid(
            f"{path}: memory ran out after {allowance.used} bytes that describe its tensors; open "
            "it where more is free."
        ) from error


def _opened(
    folder: Path,
    kind: str,
    declared: Declared,
    allowance: Allowance,
    choices: Choices,
) -> Source:
    if kind == "universal":
        if declared != _NOTHING:
            raise InputInvalid(
                f"{folder}: this is a universal checkpoint; its layout rules are applied already, "
                "leave the declarations out."
            )
        return open_own(folder, allowance)
    if kind == "huggingface":
        return open_huggingface(folder, declared, allowance, choices)
    if kind == "megatron":
        return open_megatron(folder, declared, allowance, choices)
    return open_deepspeed(folder, declared, allowance)


_MEANT_FOR = {
    "model": ("dcp", "huggingface"),
    "optim": ("dcp", "huggingface"),
    "shards": ("huggingface",),
    "unpack": ("dcp",),
    "weights_only": ("huggingface", "megatron"),
}


def _refuse_choices(folder: Path, kind: str, choices: Choices) -> None:
    """Refuse a choice that the kind does not leave open."""
    for name, kinds in _MEANT_FOR.items():
        if kind not in kinds and getattr(choices, name) != getattr(NO_CHOICES, name):
            option = "optimizer" if name == "optim" else name.replace("_", "-")
            raise InputInvalid(f"{folder}: --{option} means nothing for a {kind} checkpoint.")


def locate(path: Path, allowance: Allowance | None = None) -> tuple[Path, str]:
    """Return the checkpoint's own folder and its kind, as in `Source.kind`.

    Raises:
        InputInvalid: see `open_source`.
    """
    if not path.is_dir():
        raise InputInvalid(f"{path}: there is no such folder.")
    if kind := _kind(path):
        return path, kind
    found = _latest(path, allowance or Allowance()) or _newest(path)
    if is_huggingface(path):
        if found is not None and found[1] != "deepspeed":
            raise InputInvalid(
                f"{path}: it holds safetensors files and {found[0].name} beside them; name one of "
                "them."
            )
        found = found or (path, "huggingface")
    if found is None:
        _refuse_without_zero(path)
        if next(path.glob("*.distcp"), None) is not None:
            raise InputInvalid(
                f"{path}: it holds torch DCP's files without {METADATA}, which torch writes last: "
                "the save did not end, so take another checkpoint."
            )
        raise InputInvalid(
            f"{path}: there is no checkpoint in it. Looked for: manifest.json (universal "
            f"checkpoint), metadata.json or `{ITERATION}` (Megatron), {METADATA} (torch DCP), "
            f"zero_pp_rank_*_optim_states.pt or `{LATEST}` (DeepSpeed), *.safetensors (Hugging "
            f"Face), and {METADATA} in its folders (steps of "
            "torch DCP, or a model and its optimizer)."
        )
    return found


def _kind(folder: Path) -> str:
    """Kind of the checkpoint in a folder; "" for none."""
    tests: tuple[tuple[str, Callable[[Path], bool]], ...] = (
        ("universal", is_universal),
        ("megatron", is_megatron),
        ("dcp", lambda each: (each / METADATA).is_file() or bool(beside.parts(each))),
        ("deepspeed", is_deepspeed),
    )
    kinds = [kind for kind, is_it in tests if is_it(folder)]
    if "megatron" in kinds:
        # Its folders are DCP's, with rules of their own.
        kinds = [each for each in kinds if each != "dcp"]
    if len(kinds) > 1:
        raise InputInvalid(
            f"{folder}: it holds both a {kinds[0]} and a {kinds[1]} checkpoint; name one of them."
        )
    return kinds[0] if kinds else ""


def _latest(path: Path, allowance: Allowance) -> tuple[Path, str] | None:
    """Follow DeepSpeed's file `latest`, or Megatron's, which name a folder beside them."""
    for name in (LATEST, ITERATION):
        tag = _told(path, name, allowance)
        if tag is not None:
            return _named(path, name, _iteration(tag) if name == ITERATION else tag)
    return None


def _told(path: Path, name: str, allowance: Allowance) -> str | None:
    """What a small file says; None where it is missing."""
    try:
        with RegularFiles(path) as files:
            return files.read(name, _TAG_NBYTES, allowance).decode().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputInvalid(
            f"{path / name}: cannot be read ({error}); name the checkpoint's own folder."
        ) from error


def _iteration(tag: str) -> str:
    """The folder of an iteration: Megatron's file tells its number, or `release`."""
    return f"iter_{int(tag):07d}" if re.fullmatch(r"[0-9]{1,18}", tag) else tag


def _named(path: Path, name: str, tag: str) -> tuple[Path, str]:
    parts = PurePosixPath(tag).parts
    if len(parts) != 1 or parts[0] in ("..", "/") or not tag.isprintable() or len(tag) > _NAME:
        raise InputInvalid(f"{path / name}: {tag!r:.80} is not the name of a folder beside it.")
    if (path / tag).is_symlink():
        raise InputInvalid(
            f"{path / name}: it names {tag!r:.80}, a symbolic link; name the folder you mean."
        )
    if not (path / tag).is_dir():
        raise InputInvalid(f"{path / name}: it names {tag!r:.80}, which does not exist.")
    kind = _kind(path / tag)
    if not kind:
        _refuse_without_zero(path / tag)
        raise InputInvalid(f"{path / tag}: `{name}` names it, but it holds no checkpoint.")
    return path / tag, kind


def _refuse_without_zero(folder: Path) -> None:
    if is_without_zero(folder):
        raise InputInvalid(
            f"{folder}: it holds DeepSpeed's model files, but no zero_pp_rank_*_optim_states.pt. "
            "They are lost, or it was saved without ZeRO, whose optimizer knows parameters by "
            "number only; that is not supported."
        )


def _newest(path: Path) -> tuple[Path, str] | None:
    """Among folders of steps ("step-100"), the one with the highest last number."""
    found: dict[int, Path] = {}
    for each in path.iterdir():
        numbers = re.findall(r"\d+", each.name)
        if numbers and each.is_dir() and ((each / METADATA).is_file() or beside.parts(each)):
            step = int(numbers[-1][:18])
            if step in found:
                raise InputInvalid(
                    f"{path}: {found[step].name} and {each.name} are both step {step}; name one."
                )
            found[step] = each
    return (found[max(found)], _kind(found[max(found)])) if found else None
