"""Whether every tensor survives every way through a checkpoint, bit for bit: the matrix, printed.

    python -m benchmarks.checkpoint_equality [--json]

Sources are real: DeepSpeed trains under ZeRO-1, 2 and 3, torch's DCP saves from four gloo ranks in
many layouts. Each goes every way (indexed as it lies, virtual, physical, exported and read again),
and is read back whole and in the boxes of several target layouts. What is compared with is what the
training ranks held in memory, gathered by DeepSpeed or torch, and, for ZeRO, DeepSpeed's own
conversion. A column per target layout counts the tensors that differ. The negative controls spoil
one tensor of what was held; each must be noticed there, and nowhere else.
"""

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import Goal, Report, run
from tests.hook.harness import Zygote
from tests.universal import dcp_runs, deepspeed_runs
from tests.universal.comparing import SPOILT, Held
from tests.universal.exports.scattered import bits
from wattmesh.controller.cli.main import main as wattmesh
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.index import PARAM
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.sources.source import BYTES

Bits = Mapping[tuple[str, str], bytes]

TARGETS: Mapping[str, tuple[int, ...]] = {
    "whole": (1, 1),
    "4 x dim 0": (4, 1),
    "3 x dim 0": (3, 1),
    "4 x dim 1": (1, 4),
    "2 x 2": (2, 2),
}
"""Target layouts, as numbers of shards of the first two dims; sizes need not divide."""

CAUGHT = "caught: "
"""How a control's column begins."""


def boxes(shape: Shape, shards: tuple[int, ...]) -> Iterator[Box]:
    """What each rank of a target layout asks for, as torch's Shard cuts it."""
    cuts = []
    for dim, size in enumerate(shape):
        step = -(-size // shards[dim]) if dim < len(shards) and size else max(size, 1)
        cuts.append([(at, min(step, size - at)) for at in range(0, max(size, 1), step)])
    for number in np.ndindex(*(len(each) for each in cuts)):
        picked = [cuts[dim][at] for dim, at in enumerate(number)]
        yield Box(tuple(at for at, _ in picked), tuple(count for _, count in picked))


def read(folder: Path, target: str) -> Bits:
    """Every tensor of a checkpoint, put together from what the target's ranks would read.

    Left out are opaque values, which are carried as bytes and were never tensors.
    """
    source = open_source(folder)
    found = {}
    with Files(source.folder) as files:
        reader = Reader(source.index, files)
        for row, entry in enumerate(source.index.entries):
            if entry.state == BYTES:
                continue
            whole = np.empty_like(reader.read(row))
            whole.view(np.uint8 if whole.ndim else whole.dtype)[...] = 255
            for box in boxes(entry.shape, TARGETS[target]):
                at = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
                whole[at] = reader.read(row, box)
            found[entry.key] = whole.tobytes()
    return found


def universal_of_deepspeed(folder: Path, held: Held) -> Bits:
    """A universal folder of DeepSpeed's format, read by torch; what it has of what was held."""
    found = {}
    for name, state in held:
        path = folder / "zero" / name / f"{'fp32' if state == 'param' else state}.pt"
        if path.exists():
            value = torch.load(path, weights_only=True)
            tensor = value["param"] if isinstance(value, dict) else value
            # DeepSpeed's own conversion widens what is frozen; narrowing that again is exact.
            found[name, state] = bits(tensor.to(held[name, state].dtype))
    return found


def ways(made: Path, into: Path, *, zero: bool) -> Iterator[tuple[str, Path]]:
    """Convert and export with the command line; give what can be opened again."""
    yield "as it lies", made
    steps: tuple[tuple[str, list[Any]], ...] = (
        ("virtual", ["convert", made, into / "virtual", "--kind", "virtual", "--no-hash"]),
        ("physical", ["convert", made, into / "physical", "--kind", "physical"]),
        ("physical, of the virtual",
         ["convert", into / "virtual", into / "again", "--kind", "physical"]),
        ("exported to DCP", ["export", into / "physical", into / "dcp", "--to", "dcp"]),
    )  # fmt: skip
    for way, words in steps:
        command(words)
        yield way, words[2]
    if zero:
        command(["export", into / "physical", into / "deepspeed", "--to", "deepspeed"])


def command(words: list[Any]) -> None:
    """Run `wattmesh checkpoint ...` here, quietly.

    Raises:
        RuntimeError: it failed; what it said is in the message.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = wattmesh(["checkpoint", *map(str, words)])
    if status != 0:
        raise RuntimeError(f"wattmesh checkpoint {words[0]} ended with {status}: {said.getvalue()}")


def of_held(held: Held) -> dict[tuple[str, str], bytes]:
    """What was held, as bits."""
    return {key: bits(tensor) for key, tensor in held.items()}


def differing(found: Bits, held: Bits) -> list[tuple[str, str]]:
    """Keys that one side lacks, or whose bits differ."""
    return sorted(key for key in {*found, *held} if found.get(key) != held.get(key))


def with_ties(held: Bits, made: Path) -> Bits:
    """What a format without ties holds: a tied parameter under each of its names."""
    tied = open_source(made).index.tied
    return {**held, **{(alias, PARAM): held[name, PARAM] for alias, name in tied.items()}}


def rows_of(name: str, made: Path, held: Held, into: Path) -> Iterator[dict[str, Any]]:
    """Every way of one source, whole and in every target layout; the controls at the end."""
    zero = name.startswith("zero")
    expected = of_held(held)
    for way, folder in ways(made, into, zero=zero):
        wanted = with_ties(expected, made) if way == "exported to DCP" else expected
        wrong = {target: len(differing(read(folder, target), wanted)) for target in TARGETS}
        yield {"source": name, "way": way, "tensors": len(wanted), **wrong}
    if zero:
        yield from _beside_deepspeed(name, made, held, into)
    whole = read(into / "physical", "whole")
    key = next(key for key in held if all(_changes(held, key, each) for each in SPOILT.values()))
    caught = {
        f"{CAUGHT}{control}": differing(whole, of_held(spoil(held, key))) == [key]
        for control, spoil in SPOILT.items()
    }
    yield {"source": name, "way": "negative controls", "tensors": len(expected), **caught}


def _beside_deepspeed(name: str, made: Path, held: Held, into: Path) -> Iterator[dict[str, Any]]:
    """Our export in DeepSpeed's format against what was held and against DeepSpeed's own."""
    exported = universal_of_deepspeed(into / "deepspeed", held)
    expected = {key: each for key, each in of_held(held).items() if key in exported}
    wrong = differing(exported, expected)
    yield {
        "source": name,
        "way": "exported to DeepSpeed",
        "tensors": len(exported),
        "whole": len(wrong),
    }
    words = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder"]
    words += [str(made), "--output_folder", str(into / "theirs"), "--inject_missing_state"]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1][:60]
        yield {"source": name, "way": f"ds_to_universal: {last}"}
        return
    theirs = universal_of_deepspeed(into / "theirs", held)
    wrong = differing(theirs, {key: each for key, each in of_held(held).items() if key in theirs})
    yield {
        "source": name,
        "way": "DeepSpeed's ds_to_universal",
        "tensors": len(theirs),
        "whole": len(wrong),
    }


def _changes(held: Held, key: tuple[str, str], spoil: Callable[..., Held]) -> bool:
    """Whether a control would change anything: rows of equal values can be swapped unseen."""
    tensor = held[key]
    if tensor.ndim < 2 or key[1] == "param":
        return False
    spoilt = spoil(held, key).get(key)
    return spoilt is None or bits(spoilt) != bits(tensor)


def made_sources(folder: Path) -> Iterator[tuple[str, Path, Held]]:
    """Train and save everything."""
    for kind in ("zero", "dcp"):
        (folder / kind).mkdir()
    trained = deepspeed_runs.train_all(folder / "zero")
    for each in deepspeed_runs.RUNS:
        yield each.name, trained.folder / each.name / "step2", trained.held(each.name)
    zygote = Zygote()
    try:
        saved = dcp_runs.save_all(zygote, folder / "dcp")
    finally:
        zygote.close()
    for case in dcp_runs.CASES:
        yield f"DCP {case}", saved.folder / case, saved.held(case)


def measure(_chosen: argparse.Namespace) -> Report:
    """Compare every tensor of every source after every way."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="wattmesh-bench-") as name:
        for source, made, held in made_sources(Path(name)):
            into = Path(tempfile.mkdtemp(dir=name))
            rows += rows_of(source, made, held, into)
    mismatches = sum(row.get(target, 0) for row in rows for target in TARGETS)
    controls = [row[key] for row in rows for key in row if key.startswith(CAUGHT)]
    return Report(
        benchmark="checkpoint_equality",
        rows=tuple(rows),
        goals=(
            Goal(name="roundtrip_mismatches", value=mismatches, goal=0, op="=="),
            Goal(name="controls_caught", value=sum(controls) / len(controls), goal=1.0, op="=="),
        ),
    )


if __name__ == "__main__":
    sys.exit(run(measure))
