"""Many switches of the dense and the MoE example with glibc's heap checks on: who dies of it.

    python -m benchmarks.switch_heap [--switches 200] [--within 3600] [--plain] [--json]

Damage to the heap kills a process long after it was done, or never. With MALLOC_CHECK_=3 glibc
looks at every block when it is freed and ends the process when somebody wrote beside it, or freed
it twice. Since glibc 2.34 these checks live in a library that has to be preloaded
(LD_PRELOAD=libc_malloc_debug.so.0); without it MALLOC_CHECK_ does nothing and says nothing. So a
child that writes one byte too many is run first: were it not ended, there would be no figures; nor
if it were ended without the checks.

Each preset switches in one launch through its layouts in turn. Where a rank dies the rest goes on
in another launch, and a row says which rank, by which signal, after which switch and in which phase
of the next, with Python's stack and, where gdb and a core file are there, the native one. --plain
leaves the checks out: the allocator's own caches, and its message "unaligned tcache chunk", are
there only then. Ranks that end by themselves with an error (a deadline on a busy machine) did not
die; they are counted apart.
"""

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.report import Goal, Report, run
from benchmarks.switch.__main__ import SIXTEEN
from benchmarks.switch.job import JobOptions
from benchmarks.switch.launching import Ended, JobFailedError, launch, stops, workplace
from benchmarks.switch.orders import OrderGiver
from wattmesh.reconfig.layout import Layout

CHECKS = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3"}
STACKS = {"PYTHONFAULTHANDLER": "1"}
PRESETS = ("tiny", "tiny-moe")
MOST_LAUNCHES = 20
"""After so many a preset is not launched again, however many switches are left."""

ONE_TOO_MANY = """
import ctypes
api = ctypes.pythonapi
api.PyMem_RawMalloc.argtypes, api.PyMem_RawMalloc.restype = [ctypes.c_size_t], ctypes.c_void_p
api.PyMem_RawFree.argtypes = [ctypes.c_void_p]
block = api.PyMem_RawMalloc(20)
ctypes.memset(block + 20, 1, 1)
api.PyMem_RawFree(block)
"""
"""Writes a byte beside a block of 20, and frees it: unchecked this goes well, for 24 are usable."""


NOBODY = Ended(rank=-1, status=0, words="")
"""Stands for a launch that was still running when its time was over."""


class NotCheckedError(Exception):
    """The heap checks are not on, so that nobody dying says nothing."""


def prove(environment: Mapping[str, str]) -> None:
    """Make sure that an environment turns the checks on, and that nothing else does.

    Raises:
        NotCheckedError: a byte too many was not noticed with it, or was without it.
    """
    bare = {key: value for key, value in os.environ.items() if key not in CHECKS}
    noticed = [
        subprocess.run(
            [sys.executable, "-c", ONE_TOO_MANY], env=each, capture_output=True, check=False
        ).returncode
        for each in ({**bare, **environment}, bare)
    ]
    if noticed != [-signal.SIGABRT, 0]:
        raise NotCheckedError(
            f"a child that writes a byte too many ended with {noticed[0]} under the checks "
            f"(SIGABRT is {-signal.SIGABRT}) and with {noticed[1]} without; glibc 2.34 or later "
            f"needs {CHECKS['LD_PRELOAD']} (Debian: package libc6)"
        )


def layouts_of(preset: str) -> list[Layout]:
    """Layouts to go through; a dense model has no experts, and no layout follows itself."""
    found = list(SIXTEEN) if preset.endswith("moe") else [replace(each, ep=1) for each in SIXTEEN]
    return [each for each, _ in groupby(found)]


Launcher = Callable[[Path, str, int, Mapping[str, str]], tuple[int, Sequence[Ended], str]]
"""Launches a preset once in a folder, for so many switches; gives how many stood, how its ranks
ended if one of them failed or there was no time left, and the phase of the newest switch."""


def soak(
    preset: str, count: int, environment: Mapping[str, str], launched: Launcher
) -> Iterator[dict[str, Any]]:
    """Switch `count` times; a row of every launch that ended early, and one in all."""
    stood = deaths = failures = launches = 0
    in_time = True
    while stood < count and launches < MOST_LAUNCHES and in_time:
        launches += 1
        with workplace() as folder:
            told, ended, phase = launched(folder, preset, count - stood, environment)
            stood += told
            failed = [each for each in ended if each.status]
            in_time = bool(failed) or not ended
            died = next((each for each in failed if each.status < 0), None)
            deaths += died is not None
            failures += bool(failed) and died is None
            if failed:
                yield _end(preset, stood, died or failed[0], phase, folder)
    yield {
        "what": preset,
        "switches": stood,
        "of": count,
        "launches": launches,
        "deaths": deaths,
        "failures": failures,
        "layouts": len(layouts_of(preset)),
        "environment": " ".join(f"{key}={value}" for key, value in environment.items()),
    }


def launched_once(
    folder: Path, preset: str, count: int, environment: Mapping[str, str], *, within_s: float
) -> tuple[int, Sequence[Ended], str]:
    """Launch the job; a `Launcher` but for its limit."""
    out, layouts = folder / "out", layouts_of(preset)
    out.mkdir()
    options = JobOptions(
        preset=preset,
        layout=layouts[0].to_dict(),
        folder=str(folder / "checkpoints"),
        out=str(out),
        switches=count,
    )
    with OrderGiver(folder / "orders", out, stops(layouts, count)) as giver:
        url = {"WATTMESH_URL": f"unix://{folder / 'orders'}"}
        ended: Sequence[Ended] = ()
        try:
            launch(options, {**url, **environment}, within_s)
        except JobFailedError as error:
            ended = error.ended or (NOBODY,)
        newest = giver.transitions[-1] if giver.transitions else None
        phase = f"{newest.state} to {newest.layout}" if newest else "before the first switch"
        return len(giver.confirmed), ended, phase


def _end(preset: str, switch: int, died: Ended, phase: str, folder: Path) -> dict[str, Any]:
    """Describe the end of the rank that ended a launch, with what is left of it."""
    name = signal.Signals(-died.status).name if died.status < 0 else f"status {died.status}"
    return {
        "what": f"{preset}: a rank {'died' if died.status < 0 else 'failed'}",
        "after_switches": switch,
        "rank": died.rank,
        "by": name,
        "phase": phase,
        "words": died.words,
        "stack": _stack(folder / "out"),
    }


def _stack(out: Path) -> str:
    """Read the native stacks out of a core file; "" without one, or without gdb."""
    core = next(iter(sorted(out.glob("core*"))), None)
    if core is None or shutil.which("gdb") is None:
        return ""
    command = ["gdb", "-batch", "-ex", "thread apply all bt 30", sys.executable, str(core)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout[-8000:]


def measure(chosen: argparse.Namespace) -> Report:
    """Count ranks that die in many switches under glibc's heap checks (--plain: without)."""
    environment = STACKS if chosen.plain else {**CHECKS, **STACKS}
    if not chosen.plain:
        prove(environment)
    # For the native stack of whoever dies; ranks run in a folder that goes when they have ended.
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    launched = partial(launched_once, within_s=chosen.within)
    rows: list[dict[str, Any]] = []
    for preset in PRESETS:
        rows += soak(preset, chosen.switches, environment, launched)
    sums = [row for row in rows if "deaths" in row]
    goals = (
        Goal(
            name="switches_stood",
            value=min(row["switches"] for row in sums),
            goal=chosen.switches,
            op=">=",
        ),
        Goal(name="deaths", value=sum(row["deaths"] for row in sums), goal=0, op="=="),
    )
    return Report(benchmark="switch_heap", rows=tuple(rows), goals=goals)


if __name__ == "__main__":
    sys.exit(run(measure, {"switches": 200, "within": 3600.0, "plain": False}))
