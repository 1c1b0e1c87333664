"""The matrix of a move to another size on Slurm: what vanishes when, and who trains on.

    python -m benchmarks.slurm_moves [--json]

A real Slurm on this machine (`tests/slurm/cluster.py`) runs jobs that train nothing and go from one
size to another. At each step one part is taken away: the job's processes, a node, Slurm's
controller. (The daemon is no part of it: `tests/slurm/test_daemon.py` kills that.) A row says how
long it took until one launch trained on from when that was possible again, how many launches ever
trained at once, and whether none did. Slurm's two minutes before it starts a requeued job again are
left out, as an operator can (`scontrol update StartTime=now`). Nothing was tuned on these figures.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Goal, Report, run
from tests.daemon.waiting import wait_for
from tests.slurm.cluster import MISSING, Cluster, is_installed, running
from tests.slurm.jobs.paper import Paper

LIMIT_S = 90.0
WITH_WAY_BACK = {"do": "resize", "ranks": 4, "key": "plan-1", "back_s": 5.0}
TRAINS = {"do": "done", "wait": "go"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell: what is taken away at which step of the move."""

    step: str
    vanishes: str
    play: Callable[[Cluster, Paper], float]


def _asked(run: Paper) -> int:
    """Have a run that is about to ask for its next launch."""
    job = run.submit()
    run.wait_until(1)
    return job


def _held(run: Paper) -> int:
    """Have a run whose next launch and way back are held, and that has not left."""
    job = _asked(run)
    run.mark("ask")
    run.wait_told(2)
    return job


def _queued(slurm: Cluster, run: Paper) -> int:
    """Have a run that has left, and finds no node."""
    job = _held(run)
    slurm.ask("scontrol", "update", "nodename=n[1-4]", "state=drain", "reason=bench")
    run.mark("leave")
    slurm.reach(job, "COMPLETED")
    return job


def _begun(run: Paper) -> int:
    """Have a run whose launch of the other size trains."""
    _held(run)
    run.mark("leave")
    return int(run.wait_until(2)[1]["job"])


def _kill(run: Paper) -> None:
    """Kill every process of a run's jobs, without a word to Slurm."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(run.out).encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def _restart_controller(slurm: Cluster) -> None:
    slurm.kill_controller()
    slurm.start("slurmctld")


def _lose_node(slurm: Cluster, job: int) -> None:
    """Lose the first node of a job for good; Slurm starts the job again elsewhere."""
    nodes = slurm.ask("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    node = slurm.ask("scontrol", "show", "hostnames", nodes).split()[0]
    slurm.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=bench")
    slurm.reach(job, "PENDING")
    slurm.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=bench")


def _nodes_return(slurm: Cluster) -> None:
    for number in range(1, 5):
        with suppress(AssertionError):  # it takes jobs already
            slurm.ask("scontrol", "update", f"nodename=n{number}", "state=resume")


def _until(slurm: Cluster, run: Paper, launches: int) -> float:
    """Wait for so many launches; gives how long that took."""
    began_s = time.monotonic()

    def there() -> bool:
        slurm.hurry()
        return len(run.launches()) >= launches

    wait_for(there, f"launch {launches}", LIMIT_S)
    return time.monotonic() - began_s


def _asked_controller(slurm: Cluster, run: Paper) -> float:
    _asked(run)
    slurm.kill_controller()
    began_s = time.monotonic()
    run.mark("ask")
    run.wait_told(2)
    seconds = time.monotonic() - began_s
    slurm.start("slurmctld")
    return seconds


def _asked_node(slurm: Cluster, run: Paper) -> float:
    _lose_node(slurm, _asked(run))
    run.mark("ask")
    run.mark("leave")
    return _until(slurm, run, 2)


def _held_job(slurm: Cluster, run: Paper) -> float:
    _held(run)
    _kill(run)
    return _until(slurm, run, 2)


def _held_controller(slurm: Cluster, run: Paper) -> float:
    _held(run)
    _restart_controller(slurm)
    run.mark("leave")
    return _until(slurm, run, 2)


def _held_node(slurm: Cluster, run: Paper) -> float:
    _lose_node(slurm, _held(run))
    run.mark("leave")
    return _until(slurm, run, 2)


def _queued_controller(slurm: Cluster, run: Paper) -> float:
    _queued(slurm, run)
    _restart_controller(slurm)
    wait_for(lambda: _answers(slurm), "the controller")
    _nodes_return(slurm)
    return _until(slurm, run, 2)


def _queued_node(slurm: Cluster, run: Paper) -> float:
    """All nodes but one stay away, so that the ordered size cannot begin."""
    _queued(slurm, run)
    slurm.ask("scontrol", "update", "nodename=n1", "state=resume")
    return _until(slurm, run, 2)


def _begun_controller(slurm: Cluster, run: Paper) -> float:
    _begun(run)
    _restart_controller(slurm)
    return 0.0


def _begun_node(slurm: Cluster, run: Paper) -> float:
    _lose_node(slurm, _begun(run))
    return _until(slurm, run, 3)


def _answers(slurm: Cluster) -> bool:
    with suppress(AssertionError):
        return bool(slurm.ask("sinfo", "--noheader"))
    return False


CASES = (
    Case(step="asked", vanishes="controller", play=_asked_controller),
    Case(step="asked", vanishes="node", play=_asked_node),
    Case(step="held", vanishes="job", play=_held_job),
    Case(step="held", vanishes="controller", play=_held_controller),
    Case(step="held", vanishes="node", play=_held_node),
    Case(step="queued", vanishes="controller", play=_queued_controller),
    Case(step="queued", vanishes="nodes, all but one", play=_queued_node),
    Case(step="begun", vanishes="controller", play=_begun_controller),
    Case(step="begun", vanishes="node", play=_begun_node),
)


def measure(_: argparse.Namespace) -> Report:
    """Play every case once; without Slurm, or root, nothing can be measured."""
    if not is_installed():
        return _report([{"trouble": MISSING}], None, None)
    with running() as slurm, tempfile.TemporaryDirectory(prefix="wm-moves-") as folder:
        rows = []
        for number, case in enumerate(CASES):
            rows.append(_row(slurm, Path(folder) / str(number), case))
            slurm.clear()
    doubles = float(sum(row["double_launches"] for row in rows))
    return _report(rows, doubles, float(sum(row["lost"] for row in rows)))


def _report(rows: list[dict[str, Any]], doubles: float | None, lost: float | None) -> Report:
    seconds = [row["safe_s"] for row in rows if row.get("safe_s") is not None]
    return Report(
        benchmark="slurm_moves",
        rows=tuple(rows),
        goals=(
            Goal(name="double_launches", value=doubles, goal=0.0, op="=="),
            Goal(name="lost_runs", value=lost, goal=0.0, op="=="),
            Goal(name="worst_safe_s", value=max(seconds, default=None), goal=120.0, op="<="),
        ),
    )


def _row(slurm: Cluster, where: Path, case: Case) -> dict[str, Any]:
    paper = Paper(slurm, where, {**WITH_WAY_BACK, "wait": "ask", "linger": "leave"}, TRAINS)
    seconds, trouble = None, ""
    try:
        seconds = round(case.play(slurm, paper), 2)
        paper.mark("go")
        _finish(slurm, paper)
    except AssertionError as error:
        trouble = str(error)[:300]
    did = [each["do"] for each in paper.launches()]
    ended = _ended(paper)
    return {
        "step": case.step,
        "vanishes": case.vanishes,
        "safe_s": seconds,
        "launches": len(did),
        "ranks": [each["ranks"] for each in paper.launches()],
        "double_launches": did.count("refused"),
        "lost": int(not ended),
        "trouble": trouble,
    }


def _finish(slurm: Cluster, paper: Paper) -> None:
    """Let the run train to its end."""

    def over() -> bool:
        slurm.hurry()
        jobs = paper.jobs()
        return bool(jobs) and not {"PENDING", "RUNNING", "COMPLETING"} & set(jobs.values())

    wait_for(over, "the end", LIMIT_S)


def _ended(paper: Paper) -> bool:
    """Say whether the last launch trained to the end, or answered that it trains on."""
    told = paper.told()
    last: dict[str, Any] = next((each for each in reversed(told) if "do" in each), {})
    return last.get("do") == "done" or bool(told and told[-1].get("problem"))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(run(measure))
