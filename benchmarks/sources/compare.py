"""Reads a case, compares every tensor with what the ranks held, bit for bit, and spoils it.

A twin is a copy of the folder, or of what was held, in which one thing is wrong: it is caught when
reading is refused, or the comparison names a tensor.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.sources.cases import Case
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.declared import Average, Declared, Numbered
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.sources.source import NO_CHOICES, Choices, Source

Held = Mapping[str, torch.Tensor]
_PACKED_FLIPS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case.

    Attributes:
        result: "bitwise", "refused" or "wrong"; "not made" where the producer cannot.
        why: the sentence, or the first keys that differ.
        asked: whether the reader asked first, where it is expected to.
        twins, caught: number of spoilt twins, and of those that were noticed.
    """

    result: str
    why: str = ""
    asked: bool = True
    twins: int = 0
    caught: int = 0


def outcome(case: Case, folder: Path, order: list[str]) -> Outcome:
    """Read one case; `order` is that of the numbered parameters."""
    path, said = folder / case.folder, folder / f"{case.folder}.said"
    if said.is_file():
        return Outcome(result="not made", why=said.read_text())
    held: Held = torch.load(folder / f"{case.folder}.pt", weights_only=True)
    asked = not case.ask or case.ask in _refusal(path)
    declared, choices = answers(case, path, order)
    try:
        source = open_source(path, declared, choices=choices)
    except (InputInvalid, CheckpointDamaged) as error:
        return Outcome(result="refused", why=str(error), asked=asked)
    if wrong := differing(source, held):
        return Outcome(result="wrong", why=", ".join(wrong[:3]), asked=asked)
    write_physical(source, folder / f"{case.folder}.uc", jobs=1)
    twins = list(_spoilt(case, source, held, order))
    return Outcome(result="bitwise", asked=asked, twins=len(twins), caught=sum(twins))


def answers(case: Case, path: Path, order: list[str]) -> tuple[Declared, Choices]:
    """What a user would answer to what is asked of a case."""
    declared, choices = Declared(), NO_CHOICES
    if case.ask == "[[numbered]]":
        declared = Declared(numbered=(Numbered(tuple(order)),))
    if case.form == "an average beside":
        choices = Choices(model="model.")
    if case.form == "an average beside, declared":
        declared = Declared(averages=(Average("ema.", "ema"),))
    if case.form == "two models":
        choices = Choices(model="gen.", optim="gen_optim.")
    if case.ask == "--shards":
        choices = Choices(shards=4)
    if case.ask == "--unpack":
        target = path.with_name(f"{path.name}.unpacked")
        shutil.rmtree(target, ignore_errors=True)
        choices = Choices(unpack=target)
    return declared, choices


def differing(source: Source, held: Held) -> list[str]:
    """Keys that only one side has, or whose dtype, shape or bits differ."""
    rows = {f"{entry.name}|{entry.state}": row for row, entry in enumerate(source.index.entries)}
    found = set(rows) ^ set(held)
    with Files(source.folder) as files:
        reader = Reader(source.index, files)
        for key in set(rows) & set(held):
            entry, tensor = source.index.entries[rows[key]], held[key]
            told = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            bits = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            if (entry.dtype, entry.shape) != told or reader.read(rows[key]).tobytes() != bits:
                found.add(key)
    return sorted(found)


def _refusal(path: Path) -> str:
    with contextlib.suppress(CheckpointDamaged):
        try:
            open_source(path)
        except InputInvalid as error:
            return str(error)
    return ""


def _spoilt(case: Case, source: Source, held: Held, order: list[str]) -> Iterator[bool]:
    """Whether each twin is caught."""
    key = next(key for key in sorted(held) if held[key].numel() > 1)
    other = held[key].clone()
    other.view(-1).view(torch.uint8)[0] ^= 1
    yield differing(source, {**held, key: other}) == [key]
    yield differing(source, {k: v for k, v in held.items() if k != key}) == [key]
    path = source.folder.with_name(case.folder)
    twin = path.with_name("twin")
    # The files of a compressed one are those that were unpacked; its own are packed.
    data = [name for name in source.index.files if (path / name).is_file()]
    # A byte of an element: the first of the largest segment in the first file.
    segments = source.index.segments
    row = int(segments.nbytes.argmax())
    changed = source.index.files[int(segments.file[row])]
    flips = {changed: int(segments.offset[row])}
    for how in ("flipped", "cut", "gone"):
        shutil.rmtree(twin, ignore_errors=True)
        shutil.copytree(path, twin)
        if how == "flipped":
            content = bytearray((twin / changed).read_bytes())
            # Of a compressed one: so many in the middle that they are not all padding.
            packed = source.folder != path
            begin = len(content) // 2 if packed else flips[changed]
            for at in range(begin, begin + (_PACKED_FLIPS if packed else 1)):
                content[at] ^= 1
            (twin / changed).write_bytes(content)
        elif how == "cut":
            content = bytearray((twin / data[-1]).read_bytes())
            (twin / data[-1]).write_bytes(content[: len(content) // 2])
        else:
            (twin / data[-1]).unlink()
        yield _is_caught(case, twin, held, order)
    shutil.rmtree(twin)


def _is_caught(case: Case, twin: Path, held: Held, order: list[str]) -> bool:
    declared, choices = answers(case, twin, order)
    try:
        return bool(differing(open_source(twin, declared, choices=choices), held))
    except (InputInvalid, CheckpointDamaged):
        return True
