"""Switches in place on one GPU: seconds by phase, what teardown leaves, and the losses after.

one rank     NCCL; microbatch and recomputation change, so every layout sums in an order of its own
four ranks   share the GPU over gloo, which copies through the host: what is shown is that every
             layout trains the same model, not how fast a cluster would switch

Losses are compared step by step with those of a run that never switches; beside them stands the
difference of two runs that never switch. Pipelines are left out: gloo sends no device tensors from
rank to rank. Checkpoints go to the machine's memory where it has room (tmpfs), else to its disk.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.chosen import Chosen
from benchmarks.gpu.switch_job import CONFIGS, VARIABLE, Options, Seen
from benchmarks.report import Goal, Report
from benchmarks.switch.job import state_bytes
from wattmesh.reconfig.equivalence.script import Turn
from wattmesh.reconfig.layout import Layout

WITHIN_S, POLL_S = 150.0, 0.05
BEGIN_WITHIN_S = 300.0
"""No case begins later: two launches of it still end within the part's eight minutes."""
AT_ONCE = 10
"""Jobs beside each other while nothing is timed."""
ONE_RANK = (
    Layout(),
    Layout(micro_batch=2),
    Layout(recompute=True),
    Layout(micro_batch=1, recompute=True),
)
FOUR_RANKS = (
    Layout(dp_shard=4),
    Layout(dp_shard=2, tp=2),
    Layout(dp_shard=2, cp=2, ep=2),
    Layout(dp_replicate=2, dp_shard=2),
    Layout(tp=2),
)
"""The last one leaves two ranks parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job, run unswitched and switched.

    Attributes:
        repeat: whether the unswitched run is run twice, to see what it differs from itself by.
        alone: whether there is no unswitched run to compare with.
        restart: whether the run is launched once more from its last checkpoint, and timed.
        every: steps between two switches: a large state's checkpoint is durable by then.
    """

    name: str
    config: str
    dtype: str
    layouts: tuple[Layout, ...]
    switches: int
    repeat: bool = False
    alone: bool = False
    compiled: bool = False
    deterministic: bool = False
    restart: bool = False
    every: int = 4

    @property
    def ranks(self) -> int:
        """How many are launched."""
        return max(each.world_size for each in self.layouts)


CASES = (
    Case(
        name="one rank, fp64",
        config="bench",
        dtype="fp64",
        layouts=ONE_RANK,
        switches=8,
        repeat=True,
    ),
    Case(
        name="one rank, fp32",
        config="bench",
        dtype="fp32",
        layouts=ONE_RANK,
        switches=12,
        repeat=True,
        restart=True,
    ),
    Case(
        name="one rank, fp32, kernels that sum in one order, recomputation alone",
        config="bench",
        dtype="fp32",
        layouts=(Layout(), Layout(recompute=True)),
        switches=4,
        deterministic=True,
    ),
    Case(
        name="one rank, 1.5 GB of state, fp32",
        config="bench-gigabyte",
        dtype="fp32",
        layouts=ONE_RANK,
        switches=6,
        restart=True,
        every=20,
    ),
    Case(
        name="one rank, 6 GB of state, fp32",
        config="large",
        dtype="fp32",
        layouts=ONE_RANK,
        switches=3,
        alone=True,
        restart=True,
        every=20,
    ),
)
MORE = (
    Case(
        name="four ranks on one GPU, fp64",
        config="bench",
        dtype="fp64",
        layouts=FOUR_RANKS,
        switches=5,
        repeat=True,
    ),
    Case(
        name="four ranks on one GPU, fp32",
        config="bench",
        dtype="fp32",
        layouts=FOUR_RANKS,
        switches=5,
    ),
    Case(
        name="one rank, 1.5 GB of state, fp32, compiled",
        config="bench-gigabyte",
        dtype="fp32",
        layouts=(Layout(), Layout(micro_batch=2)),
        switches=3,
        alone=True,
        compiled=True,
        every=20,
    ),
)


class JobFailedError(RuntimeError):
    """A rank failed or took too long; the message holds every rank's last words."""


@contextmanager
def workplace(need_bytes: int) -> Iterator[Path]:
    """A folder in memory where there is room for three times as much, else on the disk."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > 3 * need_bytes + (1 << 30)
    with tempfile.TemporaryDirectory(prefix="wattmesh-", dir=shared if roomy else None) as name:
        yield Path(name)


def launch(options: Options, ranks: int, within_s: float = WITHIN_S) -> tuple[float, list[Seen]]:
    """Run the job to its end; gives when it began (monotonic), and what each rank saw.

    Raises:
        JobFailedError: see there.
    """
    out = Path(options.out)
    out.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        VARIABLE: options.to_text(),
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TORCHINDUCTOR_CACHE_DIR": str(out.parent / "compiled"),
    }
    began_s = time.monotonic()
    processes = []
    try:
        for rank in range(ranks):
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            with (out / f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, "-m", "benchmarks.gpu.switch_job"]
                processes.append(
                    subprocess.Popen(command, env=own, cwd=out, stdout=log, stderr=log)
                )
        _await(processes, began_s + within_s)
        problem = _problem(processes, within_s)
    finally:
        for each in processes:
            if each.poll() is None:
                each.kill()
                each.wait()
    if problem:
        raise JobFailedError(f"{problem}\n{_words(out)}")
    return began_s, [_read(out / f"rank-{rank}.json") for rank in range(ranks)]


def _await(processes: Sequence[subprocess.Popen[bytes]], until_s: float) -> None:
    """Wait until all have ended, or one has failed, or it is late."""
    while time.monotonic() < until_s:
        codes = [each.poll() for each in processes]
        if None not in codes:
            return
        if any(codes):
            until_s = min(until_s, time.monotonic() + 10)
        time.sleep(POLL_S)


def _problem(processes: Sequence[subprocess.Popen[bytes]], within_s: float) -> str:
    codes = [each.poll() for each in processes]
    if any(codes):
        return f"ranks ended with {codes}"
    return f"not over within {within_s:g} s" if None in codes else ""


def _words(out: Path) -> str:
    logs = sorted(out.glob("rank-*.log"))
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2500:]}" for path in logs)


def _read(path: Path) -> Seen:
    return Seen(**json.loads(path.read_text(encoding="utf-8")))


def options_of(case: Case, folder: Path, name: str, device: str, *, switched: bool) -> Options:
    """What one launch of a case is told."""
    return Options(
        config=case.config,
        dtype=case.dtype,
        folder=str(folder / name / "checkpoints"),
        out=str(folder / name / "out"),
        steps=case.every * (case.switches + 1),
        layouts=[each.to_dict() for each in case.layouts],
        device=device,
        backend="cpu:gloo,cuda:gloo" if case.ranks > 1 and device == "cuda" else "",
        every=case.every,
        switches=case.switches if switched else 0,
        compiled=case.compiled,
        deterministic=case.deterministic,
    )


def difference(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Largest relative difference of two runs' losses, step by step; None: not as many steps."""
    if len(one) != len(other) or not one:
        return None
    return max(abs(a - b) / max(abs(a), 1e-300) for a, b in zip(one, other, strict=True))


def took(ranks: Sequence[Seen], turns: Sequence[Turn]) -> list[float]:
    """Seconds of every switch: from the first rank that left to the last that has done a step.

    Of the ranks that are never parked: the others have fewer moments.
    """
    whole = [each for each in ranks if len(each.left_s) == len(turns)]
    return [
        max(each.began_s[number] for each in whole) - min(each.left_s[number] for each in whole)
        for number in range(len(turns))
    ]


def left_share(seen: Seen) -> float | None:
    """The largest share of a layout's device memory that was there when the next was built."""
    shares = [
        after / before for before, after in zip(seen.before, seen.built_on[1:], strict=False)
        if before
    ]  # fmt: skip
    return max(shares, default=None)


def phases(evidence: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Mean seconds of every phase, as the leader measured them."""
    names = (
        *("settle_s", "save_s", "stage_s", "teardown_s", "build_s", "load_s", "verify_s"),
        *("digest_before_s", "digest_after_s"),
    )
    found = {name: [float(each[name]) for each in evidence if name in each] for name in names}
    return {
        f"phase_{name}": statistics.mean(each) if each else None for name, each in found.items()
    }


def unswitched(cases: Sequence[Case], folder: Path, device: str) -> dict[str, list[list[float]]]:
    """Run what is compared with, several jobs at once, for nothing of it is timed: losses by case.

    A run that failed leaves its case with nothing to be compared with, and says why.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = {
            case.name: [
                pool.submit(launch, _options(case, folder, name, device), case.ranks)
                for name in _unswitched(case)
            ]
            for case in cases
        }
        return {
            name: [losses for each in jobs if (losses := _losses(each))]
            for name, jobs in begun.items()
        }


def _losses(job: Future[tuple[float, list[Seen]]]) -> list[float]:
    try:
        return job.result()[1][0].losses
    except JobFailedError as error:
        print(error, file=sys.stderr)
        return []


def _options(case: Case, folder: Path, name: str, device: str) -> Options:
    return options_of(case, folder / case.name.replace(" ", "-"), name, device, switched=False)


def run_case(case: Case, plain: Sequence[Sequence[float]], device: str) -> dict[str, Any]:
    """Run one case switched; gives its row.

    Args:
        case: what to run.
        plain: the losses of the runs that never switched; may be none.
        device: "cuda" or "cpu".

    Raises:
        JobFailedError: a launch failed.
    """
    count, nbytes = _size(case)
    with workplace(nbytes) as folder:
        options = options_of(case, folder, "switched", device, switched=True)
        _, ranks = launch(options, case.ranks)
        restart_s = _restart(options, case.ranks) if case.restart else None
        where = "memory" if folder.is_relative_to("/dev/shm") else "disk"
    lead = ranks[0]
    seconds = took(ranks, options.turns())
    first_s = lead.step_s[options.every :: options.every]
    return {
        "case": case.name,
        "parameters": count,
        "state_gb": nbytes / 1e9,
        "checkpoints_in": where,
        "switches": len(seconds),
        "confirmed": len({each[0] for each in lead.ends if each[1] == "confirmed"}),
        "in_place_s": statistics.mean(seconds),
        "in_place_most_s": max(seconds),
        **phases(lead.evidence),
        "first_step_s": statistics.mean(first_s),
        "first_step_most_s": max(first_s),
        "later_step_s": statistics.median(lead.step_s),
        "restart_s": restart_s,
        "left_after_teardown": left_share(lead) if device == "cuda" else None,
        "peak_gib": lead.peak / 2**30 if device == "cuda" else None,
        "losses_max_rel": difference(plain[0], lead.losses) if plain else None,
        "control_max_rel": difference(*plain) if len(plain) == 2 else None,
        "note": "; ".join(sorted({each[2] for each in lead.ends if each[2]})) or None,
    }


def _size(case: Case) -> tuple[int, int]:
    """Parameters, and bytes of the logical state."""
    count, nbytes = state_bytes(CONFIGS[case.config])
    return count, 2 * nbytes if case.dtype == "fp64" else nbytes


def _unswitched(case: Case) -> list[str]:
    if case.alone:
        return []
    return ["unswitched", "again"] if case.repeat else ["unswitched"]


def _restart(options: Options, ranks: int) -> float:
    """Launch the run once more for some steps; seconds from the start to its first step."""
    longer = replace(
        options,
        out=f"{options.out}-restarted",
        steps=options.steps + options.every,
        switches=0,
    )
    began_s, seen = launch(longer, ranks)
    return max(each.first_step_at_s for each in seen) - began_s


def cases(chosen: Chosen, every: Sequence[Case]) -> list[Case]:
    """What is run of `every`: all, or the small ones with few switches."""
    if not chosen.short and chosen.device == "cuda":
        return list(every)
    small = (each for each in every if each.config == "bench" or (each.compiled and chosen.short))
    return [replace(each, switches=min(each.switches, 5)) for each in small]


def measure(chosen: Chosen) -> Report:
    """Run the cases of one rank."""
    return measured(chosen, CASES, "switch")


def measured(chosen: Chosen, every: Sequence[Case], name: str) -> Report:
    """Run every case; one that fails is a row that says so."""
    rows: list[dict[str, Any]] = []
    began_s = time.monotonic()
    wanted = cases(chosen, every)
    with workplace(8 << 30) as folder:
        plain = unswitched(wanted, folder, chosen.device)
    for case in wanted:
        if time.monotonic() - began_s > BEGIN_WITHIN_S:
            rows.append({"case": case.name, "note": "not begun: the eight minutes would not do"})
            continue
        try:
            rows.append(run_case(case, plain[case.name], chosen.device))
        except JobFailedError as error:
            print(error, file=sys.stderr)
            rows.append({"case": case.name, "note": f"failed: {str(error).splitlines()[0]}"})
    return Report(benchmark=name, rows=tuple(rows), goals=goals(rows))


def goals(rows: Sequence[Mapping[str, Any]]) -> tuple[Goal, ...]:
    """Hold the rows to what the same figures must reach elsewhere."""

    def worst(key: str, part: str) -> float | None:
        found = [row.get(key) for row in rows if part in row["case"]]
        known = [each for each in found if each is not None]
        return max(known, default=None)

    missing = sum(row.get("switches", 1) - row.get("confirmed", 0) for row in rows)
    return (
        Goal(name="fp64_max_rel", value=worst("losses_max_rel", "fp64"), goal=1e-12, op="<="),
        Goal(name="fp32_max_rel", value=worst("losses_max_rel", "fp32"), goal=1e-5, op="<="),
        Goal(
            name="left_after_teardown", value=worst("left_after_teardown", ""), goal=0.05, op="<="
        ),
        Goal(name="switches_not_confirmed", value=missing, goal=0, op="=="),
    )
