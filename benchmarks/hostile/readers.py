"""The door of the readers: every hostile checkpoint is opened, described, verified, in one process.

    python -m benchmarks.hostile.readers WHAT SEED FIRST COUNT

It limits its own memory and time, does the work and prints one JSON object. What it opens stands in
the file that WATTMESH_HOSTILE_AT names, so that its parent can tell what killed it.

Invariant: a crash is anything but an answer or a sentence of ours (`WattmeshError`) in time.
"""

import contextlib
import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.hostile.tried import MIB, Cost, Tried, merged

PATIENCE_S = 60
ROOM_MIB = 1024
"""Seconds and memory that one input may take before it counts as a crash."""

Look = Callable[[Path], None]


def measure(seed: int, count: int) -> Tried:
    """Try `count` mutants and all bombs, each kind in a child of limited memory."""
    return merged("readers", [in_child("mutants", seed, 0, count), in_child("bombs", seed, 0, 0)])


def in_child(what: str, seed: int, first: int, count: int) -> Tried:
    """Try inputs in a child; one that ends it is a crash, and the rest go on after it."""
    tried: list[Tried] = []
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder) / "at"
        while not tried or first < count:
            command = [sys.executable, "-m", _MODULE]
            done = subprocess.run(
                [*command, what, str(seed), str(first), str(count)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "WATTMESH_HOSTILE_AT": str(at), "OPENBLAS_NUM_THREADS": "1"},
            )
            if done.returncode == 0:
                tried.append(Tried.from_json(json.loads(done.stdout)))
                break
            told = at.read_text() if at.exists() else "0 before the first"
            number, _, words = told.partition(" ")
            reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            crash = f"{words}: the process ended: {reason:.200}"
            tried.append(Tried(door="readers", inputs=int(number) - first + 1, crashes=(crash,)))
            first = int(number) + 1
            if what == "bombs":
                break
    return merged("readers", tried)


_MODULE = "benchmarks.hostile.readers"


def open_and_look(folder: Path) -> None:
    """What a person does with a checkpoint that somebody handed over: inspect, verify, convert."""
    # Slow to import; whoever only asks for the report needs none of it.
    from wattmesh.controller.cli.checkpoint import checkpoint_screen as screen  # noqa: PLC0415
    from wattmesh.reconfig.universal import against, prune  # noqa: PLC0415
    from wattmesh.reconfig.universal.convert.origin import origin_of  # noqa: PLC0415
    from wattmesh.reconfig.universal.exports import values  # noqa: PLC0415
    from wattmesh.reconfig.universal.folder import open_checkpoint  # noqa: PLC0415
    from wattmesh.reconfig.universal.sources.detect import open_source  # noqa: PLC0415
    from wattmesh.reconfig.universal.verify import verify  # noqa: PLC0415

    prune.candidates(folder.parent)
    source = open_source(folder)
    json.dumps(screen.facts(source))
    json.dumps(origin_of(source).trainer)
    if source.kind == "universal":
        damage = verify(folder, jobs=1).damage
        json.dumps([str(each) for each in damage])
        if not damage:
            checkpoint = open_checkpoint(folder)
            values.from_trainer(checkpoint.trainer)
            against.matches_memory(checkpoint, jobs=1)


def mutants(seed: int, first: int, count: int, look: Look = open_and_look) -> Tried:
    """Try mutants `first` to `count` of a seed."""
    from benchmarks.hostile import mutants as mutating  # noqa: PLC0415 - torch is slow to import
    from benchmarks.hostile import seeds  # noqa: PLC0415

    with tempfile.TemporaryDirectory(dir=_fast_folder()) as place:
        honest = Path(place) / "honest"
        honest.mkdir()
        for name, make in seeds.SEEDS.items():
            make(honest / name)
            look(honest / name)
        made = sorted(seeds.SEEDS)

        def each() -> Iterator[tuple[int, str, Path]]:
            for number in range(first, count):
                kind = random.Random(f"{number} {seed}").choice(made)
                folder = Path(place) / "it" / "step-00000007"
                _copy(honest / kind, folder)
                how = mutating.spoil(folder, seed, number)
                yield number, f"seed {seed} number {number}: {kind}, {how}", folder
                shutil.rmtree(folder.parent, ignore_errors=True)

        return trials(each(), look)


def bombs(look: Look = open_and_look) -> Tried:
    """Try every bomb; saying something else than it should is a crash, too."""
    from benchmarks.hostile.bombs import BOMBS  # noqa: PLC0415 - torch is slow to import

    with tempfile.TemporaryDirectory(dir=_fast_folder()) as place:

        def each() -> Iterator[tuple[int, str, Path]]:
            for number, (name, (make, _)) in enumerate(BOMBS.items()):
                folder = Path(place) / name / "it"
                folder.parent.mkdir()
                make(folder)
                yield number, name, folder
                shutil.rmtree(folder.parent)

        return trials(each(), look, {name: words for name, (_, words) in BOMBS.items()})


def trials(
    inputs: Iterator[tuple[int, str, Path]], look: Look, expected: dict[str, str] | None = None
) -> Tried:
    """Open one after the other; measure each."""
    from benchmarks.hostile.tried import said_as_expected  # noqa: PLC0415
    from wattmesh.errors import WattmeshError  # noqa: PLC0415

    crashes: list[str] = []
    costs: list[Cost] = []
    # What was imported is no input's garbage, and takes long to walk through.
    gc.freeze() if expected else None
    for number, words, folder in inputs:
        _note(f"{number} {words}")
        nbytes = sum(_stored(each) for each in folder.rglob("*"))
        gc.collect() if expected else None
        said = "opened"
        before_mib, begin_s = reset_peak(), time.process_time()
        signal.alarm(PATIENCE_S)
        try:
            look(folder)
        except WattmeshError as error:
            said = str(error)
        except Exception as error:
            crashes.append(f"{words}: {type(error).__name__}: {error!s:.200}")
        finally:
            signal.alarm(0)
        cpu_s = time.process_time() - begin_s
        costs.append(Cost(words, nbytes, cpu_s, max(0.0, peak_mib() - before_mib)))
        if expected is not None and not said_as_expected(said, expected[words]):
            crashes.append(f"{words}: said {said:.200}")
    return Tried(door="readers", inputs=len(costs), crashes=tuple(crashes), costs=tuple(costs))


def _stored(path: Path) -> int:
    """Bytes that a file has on the disk; none for what is no file."""
    found = path.lstat()
    return min(found.st_size, 512 * found.st_blocks) if path.is_file() else 0


def _copy(source: Path, target: Path) -> None:
    """Copy a checkpoint; files of a virtual one are links, which keep its fingerprints true."""
    target.parent.mkdir()
    shutil.copytree(source, target, copy_function=_link_data)


def _link_data(source: str, target: str) -> None:
    if f"{os.sep}files{os.sep}" in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _fast_folder() -> str | None:
    """Memory where there is some: thousands of small folders are made and removed."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _note(words: str) -> None:
    at = os.environ.get("WATTMESH_HOSTILE_AT")
    if at:
        Path(at).write_text(words, errors="backslashreplace")


def reset_peak() -> float:
    """Forget the largest memory so far; MiB in use."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _field("VmRSS")


def peak_mib() -> float:
    """Give the largest memory of this process since `reset_peak`."""
    return _field("VmHWM")


def _field(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"no answer within {PATIENCE_S} s")


def main(words: list[str]) -> int:
    """Do what the parent asks."""
    what, seed, first, count = words[0], *map(int, words[1:])
    import torch  # noqa: F401, PLC0415 - its memory is not the readers'

    signal.signal(signal.SIGALRM, _too_long)
    used = int(_field("VmSize")) * MIB
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_MIB * MIB,) * 2)
    tried = mutants(seed, first, count) if what == "mutants" else bombs()
    print(json.dumps(tried.as_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
