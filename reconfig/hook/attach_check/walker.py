"""Orders the layouts one after the other inside a run that `wattmesh attach-check` has started.

It takes the place of the daemon client in the process of global rank 0, so that an order is there
at the step at which it is due, however fast the steps are.

Invariant: a run under check saves only into the check's folder, talks to no daemon, and ends at a
save step when the walk is over. It counts as a run that is only observed: an error that would end
another launch becomes one sentence, and the walk goes on.
"""

import os
from pathlib import Path

from wattmesh.reconfig.client.reporter import SilentReporter
from wattmesh.reconfig.hook.attach_check.check_folder import (
    Attached,
    CheckFolder,
    LeftOut,
    SaveStep,
    UnknownLoss,
)
from wattmesh.reconfig.hook.boundary_vote import VoteResult
from wattmesh.reconfig.hook.job import AttachedJob
from wattmesh.reconfig.itinerary import EPOCH, Itinerary
from wattmesh.reconfig.launch.folder import OUTCOME_VARIABLE, RunFolder
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.link import URL_VARIABLE
from wattmesh.reconfig.wire.messages import Finish, Orders, Progress, Transition

MOST_STEPS = 5
"""Default limit of steps in each layout: errors of a layout show up in its first steps."""

MOST_TRIES = 3
"""How many save steps may pass without a finished switch before the walk is given up."""

MOST_DEFERRED = 20
"""The same limit while the save step is postponed, which repeats at every step."""

_ANY_LATER = 1 << 40
"""In steps; so large that an order is never too late."""


def folder_of(checkpoint_dir: str | Path) -> RunFolder:
    """Return the run's folder, which is the check's folder under a check.

    Raises:
        InputInvalid: the environment names a folder that is not one of a check.
    """
    place = CheckFolder.from_environment()
    if place is None:
        return RunFolder(Path(checkpoint_dir).absolute())
    place.asked()
    return RunFolder(place.run)


def prepare(job: AttachedJob, layout: Layout) -> None:
    """Prepare a run under a check to be walked through layouts; leaves any other run alone.

    Args:
        job: the job, before it begins.
        layout: the layout in which it begins.
    """
    place = CheckFolder.from_environment()
    if place is None:
        return
    layouts, steps_each = place.asked()
    attached = Attached(
        layout=layout,
        launched=job.launch_store.launched,
        boundary_every=job.boundary_every,
        steps_each=steps_each or min(job.boundary_every, MOST_STEPS),
        seekable=job.seekable,
        own_saves=job.save is not None,
    )
    for name in (URL_VARIABLE, OUTCOME_VARIABLE):
        os.environ.pop(name, None)
    job.boundary_every, job.save = attached.steps_each, None
    job.relaunched = job.holds = False
    if job.rank == 0:
        place.tell(attached)
        walker = Walker(place, job, layouts, attached.steps_each)
        job.client, job.noted = walker, walker.noted


class Walker(SilentReporter):
    """A reporter that orders one layout after the other and records what happens."""

    def __init__(
        self, place: CheckFolder, job: AttachedJob, layouts: tuple[Layout, ...], steps_each: int
    ) -> None:
        """Start in the layout in which the script begins."""
        self._place = place
        self._job = job
        self._itinerary = Itinerary(layouts=layouts, steps_each=steps_each)
        self._now: Progress | None = None
        self._tries = 0
        self._unknown: set[Layout] = set()

    def progress(self, message: Progress) -> None:
        """Record progress; ask for the end after enough steps in the last layout."""
        self._now = message
        self._place.tell(message)
        if self._job.unknown_loss and message.layout not in self._unknown:
            self._unknown.add(message.layout)
            unknown = self._job.unknown_loss
            self._place.tell(UnknownLoss(step=message.step, layout=message.layout, loss=unknown))
        walk = self._itinerary
        if walk.over and message.step >= walk.since + walk.steps_each:
            self._stop_at_next_save()

    def transition(self, message: Transition) -> None:
        """Record a state of a switch; go on to the next layout when the switch has ended."""
        self._place.tell(message)
        if self._itinerary.ended(message):
            self._tries = 0

    def finish(self, message: Finish) -> None:
        """Record that the run has ended at a save step."""
        self._place.tell(message)

    def orders(self) -> Orders:
        """Order the next layout that is allowed; record those that are skipped."""
        now, walk = self._now, self._itinerary
        if now is None:
            return Orders()
        while not walk.over and (why := self._why_not(walk.layouts[walk.next], now)):
            self._place.tell(LeftOut(layout=walk.layouts[walk.next], why=why))
            walk.skip()
        order = walk.order(
            run=now.run,
            attempt=now.attempt,
            point="" if walk.over else str(walk.layouts[walk.next]),
            reason="attach-check",
            late_steps=_ANY_LATER,
        )
        return Orders(order=order, epoch=EPOCH)

    def noted(self, step: int, agreed: VoteResult, trouble: str) -> None:
        """Record what all ranks agreed on at a save step; give the walk up if it is stuck.

        It is called before the switch that was agreed on.
        """
        job, now = self._job, self._now
        for_good = job.uncarried or job.unprobed
        if now is not None:
            self._place.tell(
                SaveStep(
                    step=step,
                    layout=now.layout,
                    ranks=len(now.ranks),
                    told=agreed.told,
                    deferred=agreed.deferred,
                    trouble=trouble,
                    for_good=for_good,
                )
            )
        self._tries += 1
        if for_good or self._tries > (MOST_DEFERRED if agreed.deferred else MOST_TRIES):
            self._stop_at_next_save()

    def _why_not(self, layout: Layout, now: Progress) -> str:
        """Say why a layout is not ordered; "" when it is."""
        if layout == now.layout:
            return "training was in it already"
        if not self._job.seekable and layout.data_parallel != now.layout.data_parallel:
            return (
                f"the script says seekable=False, so its data parallel degree stays "
                f"{now.layout.data_parallel}: no daemon would order it"
            )
        return ""

    def _stop_at_next_save(self) -> None:
        self._job.stop_reason = self._job.stop_reason or "attach-check has seen enough"
