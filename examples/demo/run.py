"""Runs the whole demo.

It profiles the layouts, and trains under the daemon while the recorded day passes. Then it trains
the same without a switch, and once more with sums in another order. At last it reads everything
back and reports.
Invariant: whatever goes wrong, every process it started is ended, and the folder stays, with logs.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.demo import daemon as daemons
from examples.demo import facts, job, report, screen
from examples.demo.daemon import DemoDaemon, RunPaths
from examples.demo.facts import DemoFailed
from examples.demo.job import DemoJob
from examples.demo.plan import DemoPlan
from examples.demo.progress import ProgressPrinter
from examples.demo.record import Beginning
from examples.demo.report import Demo, picture_of
from examples.demo.watcher import Watcher
from wattmesh import durable
from wattmesh.controller.process.children import ChildFailed, Children, wait_for
from wattmesh.controller.profile.job import read_job
from wattmesh.controller.profile.profile import profile
from wattmesh.controller.profile.proof import prove
from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.reconfig.step_log import StepRow
from wattmesh.telemetry.fake_nvml import DEMO_BOARD, FakeNvml

MARK = "demo.json"
"""A file that marks the folder of a demo."""

PICTURE_LIMIT_S = 60.0

UNPACED_LIMIT_S = 600.0
"""Generous, because a run without a simulated pace depends on the machine's load."""


@dataclass(slots=True)
class Stopwatch:
    """Measures how long each part took, and the total so far."""

    began_s: float = field(default_factory=time.monotonic)
    parts_s: dict[str, float] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began_s

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the block as part `name`."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.parts_s[name] = time.monotonic() - began_s


@dataclass(slots=True, kw_only=True)
class StartedRun:
    """One run: its places, its job, and when its training began."""

    places: RunPaths
    job: DemoJob
    beginning: Beginning = field(default_factory=Beginning.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """All runs that were trained."""

    main: StartedRun
    control: StartedRun
    reordered: tuple[StepRow, ...]


def run(
    plan: DemoPlan, progress: ProgressPrinter, *, force: bool = False, known: Path | None = None
) -> dict[str, Any]:
    """Run the demo and return its report.

    Args:
        plan: the parameters of the demo.
        progress: where progress is printed.
        force: replace the folder, whatever is in it.
        known: a catalogue of an earlier demo, to use instead of profiling again.

    Raises:
        InputInvalid: the folder holds something else.
        WattmeshError: a part failed; the message says where its log is.
    """
    # Read it before the folder is replaced: it may lie inside.
    measured = None if known is None else catalogue_file.load(known)
    prepare(plan, force=force)
    for line in screen.banner(plan):
        progress.say(line)
    try:
        return _run(plan, progress, measured)
    except KeyboardInterrupt:
        progress.say(f"stopped; every process has ended, what there is lies in {plan.folder}")
        raise
    except (ChildFailed, DemoFailed):
        raise
    except WattmeshError as error:
        raise DemoFailed(f"{error}\nThe demo stopped; its logs are in {plan.logs}.") from error


def prepare(plan: DemoPlan, *, force: bool) -> None:
    """Make an empty folder; replace one that an earlier demo made.

    Raises:
        InputInvalid: the folder holds something that no demo made, or cannot be written.
    """
    folder = plan.folder
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputInvalid(f"{folder} is no folder, and was not touched; name another with --out.")
    strange = folder.exists() and any(folder.iterdir()) and not (folder / MARK).is_file()
    if strange and not force:
        raise InputInvalid(
            f"{folder} holds something that no demo made, and was not touched; name another folder "
            "with --out, or replace it with --force."
        )
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        durable.write_text(folder / MARK, json.dumps({"made_by": "wattmesh demo"}))
    except OSError as error:
        raise InputInvalid(f"{folder} cannot be written ({error.strerror}).") from error


def _run(plan: DemoPlan, progress: ProgressPrinter, measured: Catalogue | None) -> dict[str, Any]:
    watch = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="wattmesh-") as short, Children() as children:
        sockets = Path(short)
        with watch.part("profiling"):
            plan, catalogue = _fit(plan, measured or _profile(plan, progress))
        with watch.part("main run"):
            main = _start(plan, children, sockets, "main")
            progress.say(screen.beginning(plan, "main"))
            daemon = _train(plan, children, main, progress, mode="act")
        with watch.part("control run"):
            # Its processes import torch while the last slots of the main run are priced.
            control = _start(plan, children, sockets, "control")
            facts.wait_until_settled(daemon, bound=True)
            daemon.stop()
            progress.say(screen.beginning(plan, "control"))
            daemon = _train(plan, children, control, progress, mode="observe")
        with watch.part("reordered control"):
            # It runs at full speed, so it starts only after the two runs with a simulated pace.
            progress.say(screen.beginning(plan, "reordered"))
            reordered = job.start_reordered(children, plan, plan.folder / "reordered")
            facts.wait_until_settled(daemon, bound=False)
            daemon.stop()
            reordered.child.finish(limit_s=UNPACED_LIMIT_S)
    with watch.part("report"):
        runs = Runs(main=main, control=control, reordered=reordered.rows())
        composed = _report(plan, catalogue, runs, watch)
    composed["wall_s"] = round(watch.elapsed_s, 1)
    durable.write_text(plan.folder / "report.json", json.dumps(composed, indent=2) + "\n")
    for line in ["", *screen.last_screen(composed)]:
        progress.say(line)
    return composed


def _report(plan: DemoPlan, catalogue: Catalogue, runs: Runs, watch: Stopwatch) -> dict[str, Any]:
    main = facts.read(runs.main.places, runs.main.job.rows(), catalogue, runs.main.beginning)
    control = facts.read(
        runs.control.places, runs.control.job.rows(), catalogue, runs.control.beginning
    )
    demo = Demo(
        plan=plan,
        catalogue=catalogue,
        main=main.facts,
        control=control.facts,
        reordered=runs.reordered,
        hindsight_bound_g=main.bound_g,
        wall_s=watch.elapsed_s,
        parts_s=watch.parts_s,
        training=job.training(plan),
    )
    composed = report.compose(demo)
    picture_of(plan, composed, main, control, runs.reordered).write(plan.folder)
    _draw(plan)
    return composed


def _fit(plan: DemoPlan, measured: Catalogue) -> tuple[DemoPlan, Catalogue]:
    """Fit the plan to what was measured; write the catalogue that the daemon will read."""
    tokens_per_step = measured.global_batch * measured.seq_len
    plan = plan.fitted(measured, tokens_per_step)
    catalogue = replace(measured, job=plan.run_name, tokens_total=plan.steps * tokens_per_step)
    return plan, catalogue_file.save(catalogue, plan.catalogue)


def _profile(plan: DemoPlan, progress: ProgressPrinter) -> Catalogue:
    progress.say("profiling: every layout once, held against a run that never switches")
    described = read_job(job.TRAINER_PROFILE)
    asked = replace(
        described,
        name=plan.run_name,
        command=(*described.command, *job.paced(plan)),
        boundary_every=plan.boundary_every,
        intervals=plan.profile_intervals,
    )

    def tell(text: str) -> None:
        progress.show(f"  {text}")

    found = prove(asked, profile(asked, plan.folder / "profile", tell), tell)
    for point in found.catalogue.points:
        progress.say(
            f"  {point.id}  {str(point.layout) + ' on ' + str(point.gpus):<14} "
            f"{point.tokens_per_s:6.0f} tokens/s  {point.power_w:5.0f} W simulated  "
            f"{'validated, by losses alone' if point.validated_by else point.evidence}"
        )
    if any(point.validated_by for point in found.catalogue.points):
        progress.say(
            f"  by losses alone: within {asked.tolerance:.0e} of one process that never switches; "
            "`wattmesh configs validate` also compares states and gradients"
        )
    for point_id, why in found.unproven.items():
        progress.say(f"  {point_id} may not be switched to: {why}")
    return found.catalogue


def _start(plan: DemoPlan, children: Children, sockets: Path, name: str) -> StartedRun:
    """Start a job, which imports torch and waits for its start file."""
    folder = plan.folder / name
    places = RunPaths(
        folder=folder,
        socket=sockets / f"{name}.sock",
        gpus=folder / "gpus",
        logs=plan.logs,
    )
    # A step ends before the energy counter of a real board would change.
    FakeNvml.create(places.gpus, plan.processes, DEMO_BOARD, update_ms=0).close()
    return StartedRun(places=places, job=job.start(children, plan, places))


def _train(
    plan: DemoPlan, children: Children, ran: StartedRun, progress: ProgressPrinter, *, mode: str
) -> DemoDaemon:
    """Train a job through the recorded day under its own daemon; return that daemon."""
    progress.show("  the processes import torch")
    ran.job.wait_until_ready()
    # The day begins with the daemon, the training `lead_s` later: the same hour in both runs.
    plays_at, line_s = datetime.now(UTC), time.monotonic() + plan.lead_s
    daemon = daemons.start(children, plan, ran.places, mode=mode, plays_at=plays_at)
    acting = mode == "act"
    if acting:
        daemon.freeze(plan.freeze_reason)
    wait_for(lambda: time.monotonic() >= line_s, limit_s=plan.lead_s + 1, what="The start line")
    ran.beginning = Beginning.after(plan.join_s)
    ran.job.release(ran.beginning.monotonic_s)
    watcher = Watcher(plan, daemon, progress, acting=acting)
    ran.job.child.finish(limit_s=plan.limit_s, watch=watcher.look)
    took_s = time.monotonic() - ran.beginning.monotonic_s
    progress.say(f"  trained {len(ran.job.rows())} steps in {took_s:.0f} s")
    return daemon


def _draw(plan: DemoPlan) -> None:
    """Draw the picture in a child process.

    Raises:
        ChildFailed: it could not be drawn.
    """
    words = [sys.executable, "-m", "examples.demo.picture", str(plan.folder)]
    drawn = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=PICTURE_LIMIT_S,
        check=False,
        env={**os.environ, **job.child_environment()},
    )
    if drawn.returncode:
        durable.write_text(plan.logs / "picture.log", drawn.stderr)
        raise ChildFailed(
            f"The picture could not be drawn; the report is in {plan.folder}, what went wrong in "
            f"{plan.logs / 'picture.log'}."
        )
