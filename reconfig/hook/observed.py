"""The two-line entry: `wattmesh.observe` measures and accounts a script without changing it.

    run = wattmesh.observe("llama-8b")
    ...
    run.report(tokens=..., loss=...)      # optional, after each step

It works with any script and launcher, with or without torch. Every rank may call it; global rank 0
reports to the daemon.

Invariant: nothing here raises into the script, changes how it ends, or waits for the daemon before
the script ends. A failure is one log line. An unknown figure is None, and `why_unknown` says why.
"""

import atexit
import logging
import multiprocessing
import os
import socket
import threading
import time
import uuid
from collections import deque
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig import ranges
from wattmesh.reconfig.client.daemon_client import CALL_LIMIT_S, DaemonClient
from wattmesh.reconfig.client.outbox import JobOutbox
from wattmesh.reconfig.client.pace import Pace
from wattmesh.reconfig.gpus.allocated_gpus import allocated_gpus, together
from wattmesh.reconfig.gpus.own_gpus import OwnGpus, gpus_unknown, own_gpus
from wattmesh.reconfig.gpus.rank_gpus import RankGpus
from wattmesh.reconfig.hook.reports import reported
from wattmesh.reconfig.launch.closing import Closing
from wattmesh.reconfig.launch.launched import LaunchedProcess, scheduler_key
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import (
    OBSERVED,
    Finish,
    Progress,
    Register,
    RunPhase,
    Spent,
)

log = logging.getLogger(__name__)

FIRST_LOOK_S, LATER_LOOK_S = 0.5, 10.0
"""Pause between two polls of GPUs and figures: the first one, doubled up to the second."""

LOOKS = 30
"""How often a single process looks for its GPUs: it may begin to compute on more of them later."""

FLUSH_S, UNHEARD_S = 3.0, 1.0
"""How long the end of the script waits to send its last report; `UNHEARD_S` where no daemon has
accepted the run."""

OLD_S = 3 * LATER_LOOK_S
"""From this age on, `why_unknown` says how old the figures are."""

SPEAKS_ELSEWHERE = "global rank 0 speaks for the run and has its figures"
SPAWNED = "the process that started this one speaks for the run and has its figures"


class PerStep:
    """An amount per step: the mean over the newest `MARKS` answers in which it grew.

    The daemon books in batches, grams once a minute. So an amount may not grow between two answers,
    and it lags behind the steps by a varying time. Over many answers the error is small.
    """

    MARKS = 31

    def __init__(self) -> None:
        """Begin without an answer."""
        self.mean: float | None = None
        self._marks: deque[tuple[int, float]] = deque(maxlen=self.MARKS)

    def note(self, steps: int, amount: float | None) -> None:
        """Add one answer, received after `steps` steps."""
        if amount is None or (self._marks and self._marks[-1][1] == amount):
            return
        if self._marks and amount < self._marks[-1][1]:
            self._marks.clear()  # another journal, or corrected: what was before does not compare
        self._marks.append((steps, amount))
        first_steps, first = self._marks[0]
        if steps > first_steps:
            self.mean = (amount - first) / (steps - first_steps)


class ObservedRun(Closing):
    """One rank's handle on an observed run; made by `observe`.

    Attributes:
        name: what people call the run.
        run: its UUID, on global rank 0; "" elsewhere.
    """

    def __init__(self, name: str, launched: LaunchedProcess, link: DaemonLink | None) -> None:
        """Prepare; `start` begins threads and reports."""
        self.name = name
        self.run = launched.run(os.getuid(), name) if launched.rank == 0 else ""
        self._launched = launched
        self._link = link
        self._client: DaemonClient | None = None
        self._gpus = (OwnGpus(),) * launched.world_size
        self._pid = os.getpid()
        self._incarnation = str(uuid.uuid4())
        self._attempt = launched.number
        self._pace = Pace(time.monotonic())
        self._steps = self._samples = self._tokens = 0
        self._loss: float | None = None
        self._spent = Spent(why_unknown="the daemon has not answered yet")
        self._heard_s = time.monotonic()
        self._step_j, self._step_g = PerStep(), PerStep()
        self._unknown = 0
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="wattmesh-observe", daemon=True)

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for the run: global rank 0 of a measured script."""
        return self._client is not None

    @property
    def energy_j(self) -> float | None:
        """Energy of the run so far, over all its GPUs and launches; None while not known."""
        return self._spent.energy_j

    @property
    def carbon_g(self) -> float | None:
        """Emissions of the run so far; None while not known."""
        return self._spent.carbon_g

    @property
    def energy_per_step_j(self) -> float | None:
        """Energy of one step, a recent mean; None while not known."""
        return self._step_j.mean

    @property
    def carbon_per_step_g(self) -> float | None:
        """Emissions of one step, a recent mean; None while not known."""
        return self._step_g.mean

    @property
    def flags(self) -> tuple[str, ...]:
        """What qualifies the figures if not all is measured: estimated, provisional, simulated."""
        return self._spent.flags

    @property
    def why_unknown(self) -> str:
        """Why a figure is None or old; "" when all are known and recent."""
        old_s = time.monotonic() - self._heard_s
        if not self._spent.why_unknown and old_s > OLD_S and not self._closed.is_set():
            return f"the figures are {old_s:.0f} s old: the daemon has not answered since"
        return self._spent.why_unknown

    def report(self, *, tokens: Any = 0, samples: Any = 0, loss: Any = None) -> None:
        """Report one optimizer step; accepts any argument, and never waits for the daemon.

        Args:
            tokens: consumed by this step, over all ranks; anything but a number counts as 0.
            samples: likewise.
            loss: of this step; a value on a device is synchronized, one that is not finite counts
                as unknown.
        """
        self._steps += 1
        self._loss = None
        try:
            self._tokens = min(self._tokens + reported.at_most(tokens), ranges.MOST_TOKENS)
            self._samples = min(self._samples + reported.at_most(samples), ranges.MOST_TOKENS)
            self._loss = reported.loss(loss)
        except Exception as error:  # an object of the script's that does not let itself be read
            log.debug("observe: a step was reported that cannot be read: %r", error)
        self._pace.note(time.monotonic(), self._tokens)
        if self._client is not None:
            self._client.progress(self._progress())

    def start(self, unknown: str = "") -> None:
        """Begin to poll and to report; part of `observe`. `unknown`: why there is no link."""
        atexit.register(self.close)
        if self._link is None:
            self._spent = Spent(why_unknown=unknown)
            self.run = "" if unknown == SPAWNED else self.run
            return
        if self._launched.rank == 0:
            # No folder: the only report that must arrive is the last one of this process.
            self._client = DaemonClient(
                self._link, self._register(), JobOutbox(None), self, _phase, takes_orders=False
            )
            self._client.start()
        else:
            self._spent = Spent(why_unknown=SPEAKS_ELSEWHERE)
        self._watcher.start()

    def raise_above(self, floor: int) -> int:
        """Take an attempt number above `floor`; called by the daemon client."""
        self._attempt = max(floor, self._attempt) + 1
        return self._attempt

    def accepted(self) -> None:
        """Do nothing: an observed run keeps no record that the daemon has accepted it."""

    def _close(self, error: BaseException | None) -> None:
        """Report how the script ended; a forked child process reports nothing."""
        if self._closed.is_set() or os.getpid() != self._pid:
            return
        self._closed.set()
        atexit.unregister(self.close)
        _open.pop(self.name, None)
        client = self._client
        if client is None:
            return
        try:
            client.finish(
                Finish(
                    run=self.run,
                    incarnation=self._incarnation,
                    attempt=self._attempt,
                    step=self._steps,
                    tokens=self._tokens,
                    reason=_finish_reason(error),
                    loss=self._loss,
                )
            )
            client.close(FLUSH_S if client.registered else UNHEARD_S)
        except Exception as problem:
            log.warning("observe: the end of %s could not be told: %s", self.name, problem)

    def _watch(self) -> None:
        """Look for GPUs and ask for figures until the end; the body of the watcher thread."""
        others = RankGpus(self._launched, os.environ)
        found, looks, pause_s = allocated_gpus(), 0, 0.0
        while not self._closed.wait(pause_s):
            try:
                looks += 1
                if not found.uuids or (self._launched.world_size == 1 and looks <= LOOKS):
                    found = _both(found, own_gpus())
                if self._turn(found, others):
                    return
            except Exception as error:
                log.debug("observe: %s", error, exc_info=True)
            pause_s = min(max(2 * pause_s, FIRST_LOOK_S), LATER_LOOK_S)

    def _turn(self, found: OwnGpus, others: RankGpus) -> bool:
        """Pass on which GPUs were found and ask for figures; True when nothing is left to do."""
        if self._client is None:
            return not others.offered or (others.tell(found) and bool(found.uuids))
        self._name_gpus(found, others)
        self._ask(self._client)
        return False

    def _name_gpus(self, own: OwnGpus, others: RankGpus) -> None:
        """Register the run again when the known GPUs have changed."""
        told = {**others.published(), 0: own} if self._launched.world_size > 1 else {0: own}
        gpus = tuple(told.get(rank, OwnGpus()) for rank in range(self._launched.world_size))
        if gpus != self._gpus and self._client is not None:
            self._gpus = gpus
            self._client.correct(self._register())

    def _ask(self, client: DaemonClient) -> None:
        """Ask the daemon what the run has spent; known figures stay when it does not answer."""
        if self._link is None or not client.registered:
            return
        steps = self._steps
        try:
            path = f"/v1/runs/{self.run}/spent"
            answer = self._link.call("GET", path, None, CALL_LIMIT_S)
            if answer.accepted:
                self._unknown = 0
                self._note(Spent.from_json(answer.body), steps)
                return
            self._unknown += answer.status == HTTPStatus.NOT_FOUND
            if self._unknown == 1:
                client.correct(self._register())  # a new journal may not know this run
            elif self._spent.energy_j is None:
                self._spent = Spent(why_unknown=f"the daemon answered {answer.status} to {path}")
        except (SourceUnavailable, InputInvalid) as error:
            if self._spent.energy_j is None:
                self._spent = Spent(why_unknown=str(error))

    def _note(self, spent: Spent, steps: int) -> None:
        """Keep one answer, received after `steps` steps."""
        self._spent, self._heard_s = spent, time.monotonic()
        self._step_j.note(steps, spent.energy_j)
        self._step_g.note(steps, spent.carbon_g)

    @property
    def _devices(self) -> tuple[str, ...]:
        """The GPUs of all ranks; "" for a rank whose GPU is not known."""
        named = tuple(uuid for each in self._gpus for uuid in each.uuids or ("",))
        return named[: ranges.MOST_RANKS]

    @property
    def _allocated(self) -> OwnGpus:
        """What the scheduler gave the job: known once every rank has told of its node."""
        if OwnGpus() in self._gpus:
            return OwnGpus()
        return together(self._gpus, self._devices)

    def _register(self) -> Register:
        devices, job_has = self._devices, self._allocated
        return Register(
            run=self.run,
            name=self.name,
            incarnation=self._incarnation,
            attempt=self._attempt,
            layout=_no_layout(len(devices)),
            ranks=tuple(range(len(devices))),
            world_size=len(devices),
            gpus=devices,
            allocated=job_has.allocated,
            scheduler_key=scheduler_key(os.environ),
            step=self._steps,
            tokens=self._tokens,
            capabilities=(
                OBSERVED,
                *gpus_unknown((*(each.why for each in self._gpus), job_has.allocated_why)),
            ),
            pid=self._pid,
            host=socket.gethostname(),
        )

    def _progress(self) -> Progress:
        devices = self._devices
        return Progress(
            run=self.run,
            incarnation=self._incarnation,
            attempt=self._attempt,
            seq=self._steps,
            step=self._steps,
            samples=self._samples,
            tokens=self._tokens,
            tokens_per_s=self._pace.tokens_per_s,
            pause_share=self._pace.pause_share,
            loss=self._loss,
            layout=_no_layout(len(devices)),
            ranks=tuple(range(len(devices))),
        )


_open: dict[str, ObservedRun] = {}


def observe(name: str) -> ObservedRun:
    """Let the daemon measure and account this script; returns at once and raises nothing.

    Args:
        name: what people call the run, `[A-Za-z0-9_.-]{1,64}`. Another text is taken for the
            nearest name, with a warning.

    Returns:
        The run; a second call with the same name returns the same run.
    """
    try:
        return _observe(name)
    except Exception as error:
        why = f"it could not begin: {error!r}"
        log.warning("observe: this script is not measured: %s", why)
        unmeasured = ObservedRun("unmeasured", LaunchedProcess(), None)
        unmeasured.start(why)
        return unmeasured


def _observe(name: str) -> ObservedRun:
    """Begin to observe this process; it may raise what the caller's objects and environment do."""
    known_as = ranges.as_name(str(name))
    if known_as != name:
        log.warning("observe: the daemon knows %r as %s", name, known_as)
    if known_as in _open:
        return _open[known_as]
    launched = LaunchedProcess.read(os.environ)
    link, unknown = _link(known_as, launched)
    run = ObservedRun(known_as, launched, link)
    try:
        run.start(unknown)
    except RuntimeError as error:  # no thread can begin
        log.warning("observe: %s is not measured: %s", known_as, error)
    _open[known_as] = run
    return run


def _link(name: str, launched: LaunchedProcess) -> tuple[DaemonLink | None, str]:
    """Return the link to the daemon, or None and the reason."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A spawned worker imports the script again; it is not a run, and is killed without notice.
        return None, SPAWNED
    try:
        link = DaemonLink.from_environment()
    except InputInvalid as error:
        log.warning("observe: %s is not measured: %s", name, error)
        return None, str(error)
    if link is not None:
        return link, ""
    if launched.rank == 0:
        log.warning("observe: WATTMESH_URL is not set, so %s is not measured", name)
    return None, "WATTMESH_URL is not set: no daemon is known"


def _finish_reason(error: BaseException | None) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "stopped: Ctrl-C"
    if isinstance(error, SystemExit) and error.code not in (None, 0):
        return f"failed: exit status {error.code!r}"
    clean = error is None or isinstance(error, SystemExit)
    return "done" if clean else f"failed: {error!r}"


def _both(before: OwnGpus, now: OwnGpus) -> OwnGpus:
    """Merge two readings: a GPU that was ever used belongs to the run."""
    uuids = tuple(dict.fromkeys((*before.uuids, *now.uuids)))
    return replace(before, uuids=uuids, why="" if uuids else now.why)


def _phase() -> str:
    """Return the only phase that is known of an observed launch."""
    return RunPhase.TRAINING


def _no_layout(size: int) -> Layout:
    """Return a placeholder for the required layout; `OBSERVED` marks it as one."""
    return Layout(dp_replicate=max(1, size))
