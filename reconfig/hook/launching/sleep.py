"""How a run leaves to sleep, or for another size: its next launch is held before it goes.

The leader asks through the run folder, because the launcher may be on another host than the leader.

Invariant: a run leaves only after its checkpoint was read back and its launcher has answered that
it holds the next launch. Otherwise the request is taken back, and training goes on.
"""

import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from wattmesh.errors import CallHuman
from wattmesh.reconfig.hook.background_fsync import SavedCheckpoint
from wattmesh.reconfig.hook.job import AttachedJob, SwitchReporter
from wattmesh.reconfig.hook.launching.start import newest_whole
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.asleep import AsleepNote, HoldAnswer, HoldRequest
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launch.launch_store import POLL_S
from wattmesh.reconfig.wire.messages import Order


def bounded(order: Order, now: datetime) -> Order:
    """Give an order to sleep whose time to wake is not later than it was ahead when it was given.

    The daemon's clock may be ahead of this host's, by which the launcher wakes the run.
    """
    if not order.wakes_at or not order.sleeps_s:
        return order
    latest = now + timedelta(seconds=order.sleeps_s)
    sooner = min(datetime.fromisoformat(order.wakes_at), latest)
    return replace(order, wakes_at=sooner.isoformat())


WAITS_S = 3600.0
"""How long a launch of another size may wait for nodes where the order does not say it."""


def patient(order: Order, now: datetime) -> Order:
    """Give an order for another size with the time from which on the old size may begin."""
    latest = now + timedelta(seconds=order.waits_s or WAITS_S)
    return replace(order, wakes_at=latest.isoformat())


def hold_next_launch(
    job: AttachedJob, reporter: SwitchReporter, order: Order, saved: SavedCheckpoint
) -> HoldAnswer:
    """Have the next launch held until `order.wakes_at`; called by the leader.

    Unless the answer names no problem, the run must not leave.
    """
    folder, here = job.folder, reporter.generation
    launched = job.launch_store.launched
    request = HoldRequest(
        key=order.switch_id, run=order.run, ranks=launched, wakes_at=order.wakes_at or ""
    )
    try:
        found = newest_whole(folder)
        if found is None or found[0].name != saved.name:
            return _no(order.switch_id, f"checkpoint {saved.name} cannot be read back whole")
        note = AsleepNote(
            key=order.switch_id,
            run=order.run,
            attempt=job.attempt(here),
            launched=launched,
            step=here.step,
            checkpoint=saved.name,
            layout=here.layout,
            ranks=here.ranks,
            probe=float(reporter.note.evidence["probe_before"]),
            seekable=job.seekable,
        )
        asleep.write(folder.asleep_file, note)
        answer = _ask(folder, request, job.deadlines.hold_s)
    except (OSError, CallHuman) as error:
        answer = _no(order.switch_id, str(error))
    if answer.problem:
        asleep.awake(folder)
    return answer


def hold_other_size(
    job: AttachedJob, reporter: SwitchReporter, order: Order, saved: SavedCheckpoint
) -> HoldAnswer:
    """Have a next launch of the ordered ranks held; called by the leader.

    What it must run is on disk before it is asked for: should this launch die in between, the held
    launch knows its layout, and a further one of this size goes back. A launch of this size is held
    as well, for `order.wakes_at`: it begins if the ordered one has not by then. Unless the answer
    names no problem, the run must not leave.
    """
    folder, launched = job.folder, job.launch_store.launched
    try:
        folder.ask_next(
            checkpoint=saved.name,
            layout=order.layout,
            ranks=order.ranks,
            probe=float(reporter.note.evidence["probe_before"]),
            switch=reporter.note.to_json(),
            resized_from=launched,
            left_s=reporter.elapsed_s,
        )
        request = HoldRequest(
            key=order.switch_id,
            run=order.run,
            ranks=len(order.ranks),
            back_ranks=launched,
            back_at=order.wakes_at,
        )
        answer = _ask(folder, request, job.deadlines.hold_s)
    except OSError as error:
        answer = _no(order.switch_id, str(error))
    if answer.problem:
        asleep.awake(folder)
        with suppress(OSError):
            folder.next_file.unlink(missing_ok=True)
    return answer


def _ask(folder: RunFolder, request: HoldRequest, limit_s: float) -> HoldAnswer:
    """Ask the launcher, and wait for its answer, at most `limit_s`.

    Raises:
        OSError: the file system refuses.
    """
    folder.held_file.unlink(missing_ok=True)
    asleep.write(folder.hold_file, request)
    return _answer(folder, request.key, limit_s)


def _answer(folder: RunFolder, key: str, limit_s: float) -> HoldAnswer:
    """Wait for the launcher's answer."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        told = asleep.read(folder.held_file, HoldAnswer)
        if told is not None and told.key == key:
            return told
        time.sleep(POLL_S)
    return _no(key, f"the launcher did not say within {limit_s:g} s that it holds the next launch")


def _no(key: str, problem: str) -> HoldAnswer:
    return HoldAnswer(key=key, problem=problem)
