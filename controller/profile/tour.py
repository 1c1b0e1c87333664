"""Where one launch goes next, and when a point is measured: called while the job trains.

It looks at the step log and the meters, and orders the next point once the present one is known
well enough, is dominated, or cannot be measured. Invariant: nothing is kept of a point that has no
numbers but the reason, and everything kept is on disk before the next point is ordered.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from wattmesh import quantities
from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.profile.launch import nonsense, tokens_each
from wattmesh.controller.profile.measuring.ranks import RankWatch
from wattmesh.controller.profile.measuring.step_tail import StepTail
from wattmesh.controller.profile.measuring.windows import (
    FEWEST,
    WindowNumbers,
    at_pace,
    due_s,
    periods,
    window_numbers,
)
from wattmesh.controller.profile.next_points import NextPoints, compared, with_proposed
from wattmesh.controller.profile.point_checks import dominator, idle_draw
from wattmesh.controller.profile.point_line import point_line, power_source
from wattmesh.controller.profile.power.clocks import SETTLING_S, clock_fault
from wattmesh.controller.profile.power.meter import PowerMeter
from wattmesh.controller.profile.results import MeasuredPoint, MeasuredSwitch, ProfileState
from wattmesh.controller.profile.switch_order import order_of
from wattmesh.controller.profile.walk import ProfileWalk
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.profile_folder import ProfileFolder
from wattmesh.reconfig.step_log import StepRow
from wattmesh.reconfig.switch_spend import spend_of

LOOK_EVERY_S = 0.25
LATE_S = 2.0
"""Without a reading for so long something is wrong with most sources."""

PATIENCE = 10
"""Checkpoint intervals in which a switch that is measured alone must come to its pace."""

GIB = 1 << 30
REAL_OVERRUN_S = 0.002

Tell = Callable[[str], None]


class Tour:
    """One launch's way through the points that are still to be measured."""

    def __init__(
        self,
        job: ProfileJob,
        *,
        walk: ProfileWalk,
        meter: PowerMeter,
        ranks: RankWatch,
        folder: Path,
        progress: ProfileState,
        search: NextPoints,
        tell: Tell,
    ) -> None:
        """Begin at the reference.

        Args:
            job: what is profiled.
            walk: gives the orders.
            meter: power, open.
            ranks: memory, open.
            folder: of the profile; the launch's own lies below it.
            progress: what earlier launches measured.
            search: says which point is next where all have been measured.
            tell: called with one line per point.
        """
        self._job, self._walk, self._meter, self._ranks = job, walk, meter, ranks
        self._folder, self._search, self._tell = folder, search, tell
        self.progress = progress
        self._place = ProfileFolder(folder / f"launch-{progress.launches}")
        self._tail = StepTail(self._place)
        self._todo = deque(each for each in job.walk if not self._is_done(each))
        self._order = order_of(job)
        self._built: set[Layout] = {walk.here.layout}
        self._at: Candidate | None = None
        self._going: Candidate | None = None
        self._asked: Candidate | None = None
        self._reclocked = False
        self._since = self._well_since = 0
        self._fault = ""
        self._began_s = self._judged_s = 0.0
        self._next_look_s = 0.0
        self._rows = self._checked = 0

    @property
    def blamed(self) -> Candidate:
        """The point at which a failure of the launch would be counted."""
        return self._walk.bound_for or self._at or self._walk.here

    def follow(self, launcher_pid: int) -> bool:
        """Look once; True when there is nothing more to measure in this launch."""
        self._ranks.below(launcher_pid)
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + LOOK_EVERY_S
        rows = self._tail.rows()
        if self._walk.registered is None or self._walk.bound_for is not None or not rows:
            return False
        if len(rows) > FEWEST and self._nonsense(rows):
            return True
        if self._at is None:
            target = self._target()
            if target is None:
                return True
            self._arrive(target, rows)
        if self._at is None or len(rows) == self._rows:
            return False
        self._rows = len(rows)
        return self._look(self._at, rows, now_s)

    def _nonsense(self, rows: list[StepRow]) -> bool:
        """Tell whether the log cannot be right; what was checked before is not checked again."""
        # Two rows of before say how many tokens a step had then.
        newer = rows[max(0, self._checked - 2) :]
        if len(rows) == self._checked or nonsense(self._job, newer) is None:
            self._checked = len(rows)
            return False
        return nonsense(self._job, rows) is not None

    def _target(self) -> Candidate | None:
        """Give the point to go to, for its numbers or for the switch there; None: none is left."""
        if self._todo:
            return self._todo[0]
        if self._going is None:
            self._going = self._order.next(self._walk.here, self._built, self.progress)
        return self._going

    def _arrive(self, target: Candidate, rows: list[StepRow]) -> None:
        """Begin to look at the point that was reached, or give up the one that was not."""
        here = self._walk.here
        if target.layout != here.layout:
            why = self._walk.refused.pop(target.id, "")
            if why:
                self._close(here, target, why)
                self._refuse(target, f"the job did not reach it: {why}", unfit=True)
                self._leave(target)
                return
            if self._walk.bound_for is None:
                self._walk.go(target)
            return
        if not self._at_its_clock(target):
            return
        if why := self._strangers(target):
            self._refuse(target, why)
            self._leave(target)
            return
        self._at, self._began_s = target, time.monotonic()
        self._judged_s = self._began_s + (SETTLING_S if self._reclocked else 0.0)
        arrived = [each.step for each in self._walk.arrivals]
        self._since = max([*arrived, 0 if target.id == here.id else rows[-1].step])
        # What was trained while clocks were on their way is of neither point.
        self._well_since = rows[-1].step if self._reclocked else self._since
        self._reclocked = False

    def _at_its_clock(self, target: Candidate) -> bool:
        """Ask for a point's clock; True once the GPUs are there. One that cannot be is refused."""
        clocks, why = self._meter.clocks, ""
        if self._asked is not target and (target.clock_mhz or clocks.wanted_mhz) is not None:
            gpus = self._devices(target)
            if target.clock_mhz is not None and not gpus:
                why = "neither the job nor job.power names its GPUs"
            clocks.ask(gpus, target.clock_mhz)
            self._reclocked = True
            if not clocks.ready():
                self._tell(f"{target.id} ({target.layout}): its clocks are being set")
        self._asked = target
        why = why or clocks.trouble()
        if why:
            self._refuse(target, f"its clock cannot be set: {why}")
            self._leave(target)
            return False
        return clocks.ready()

    def _note_fault(self, at: Candidate, rows: list[StepRow], now_s: float) -> None:
        """Leave out what was measured before the boards were last away from the clock asked for."""
        clocks = self._meter.clocks
        why = clocks.trouble()
        if not why and not clocks.ready():
            why = "the actuator holds its clocks no more"
        if not why and now_s > self._judged_s:
            readings = self._meter.readings(self._devices(at), self._judged_s, now_s)
            why, self._judged_s = clock_fault(readings, at.clock_mhz), now_s
        if not why:
            return
        self._well_since = rows[-1].step
        if why != self._fault:
            self._tell(f"{at.id} ({at.layout}): {why}; what was measured before is left out")
        self._fault = why

    def _look(self, at: Candidate, rows: list[StepRow], now_s: float) -> bool:
        """Measure the present point as far as it goes."""
        if not self._todo:
            return self._look_again(at, rows)
        self._note_fault(at, rows, now_s)
        mine = rows[bisect_right(rows, self._well_since, key=lambda row: row.step) :]
        found = periods(mine, self._job.every, self._well_since)
        tokens = tokens_each(rows[-2:])
        used, held = self._gpus(at), at.layout.world_size
        # Exporters are read late, so the newest intervals wait for their watts.
        until_s = self._meter.known_until_s(used, held)
        read = [each for each in found if each.end_s <= until_s]
        late = now_s - self._began_s > self._job.longest_s
        over = late and (len(found) >= 2 * FEWEST or bool(self._fault))
        numbers = None
        if tokens and len(read) >= max(FEWEST, self._job.intervals):
            numbers = window_numbers(
                read,
                partial(self._meter.draw, used, held),
                tokens_per_step=tokens,
                boundary_every=self._job.boundary_every,
                precision=self._job.precision,
            )
        if numbers is None:
            if over:
                self._refuse(at, self._fault or self._why_dark())
                return self._leave(at)
            return False
        ripe = over or numbers.settled
        why = ""
        if ripe and not self._meter.is_static:
            why = idle_draw(self.progress, numbers, at.layout.world_size)
        if not why and over and numbers.meter_share >= 1:
            why = self._why_unknown(numbers.meter_share)
        if why:
            self._refuse(at, why)
            return self._leave(at)
        memory_gib = self._memory_gib(at)
        better = dominator(self.progress.points, numbers, memory_gib) if ripe else ""
        known = numbers.settled and numbers.share <= self._job.precision
        if not (known or over or better):
            return False
        self._keep(at, rows, numbers, better)
        return self._leave(at)

    def _look_again(self, at: Candidate, rows: list[StepRow]) -> bool:
        """Wait until a point that was reached for the switch alone is at its pace."""
        known = self.progress.point(at.id)
        steps = rows[-1].step - self._since
        if known is not None and steps < self._job.every:
            return False
        if known is not None and self._walk.arrivals:
            newest = self._walk.arrivals[-1]
            late = steps >= PATIENCE * self._job.every
            if at_pace(rows, newest.step, known.step_s) is None and not late:
                return False
            self._keep_switch(rows, known.step_s)
            cold = self._walk.here.layout not in self._built
            self._order.tried(newest.origin, newest.target, cold=cold)
        return self._leave(at)

    def _leave(self, at: Candidate) -> bool:
        """Order what comes next; True where nothing does."""
        self._built.add(self._walk.here.layout)
        if self._todo and self._todo[0].id == at.id:
            self._todo.popleft()
            if not self._todo:
                self._propose()
        self._at, self._asked, self._going, self._fault, self._rows = None, None, None, "", 0
        return self._target() is None

    def _propose(self) -> None:
        """Look for a further point; the job trains on meanwhile."""
        clocks = not self._meter.clockless
        self.progress = self._search.propose(self._job, self.progress, clocks=clocks)
        job = with_proposed(self._job, self.progress)
        for point in job.points[len(self._job.points) :]:
            self._todo.append(point)
            self._order.add(point)
        if self._todo:
            self.progress.save(self._folder)
        self._job = job

    def _gpus(self, at: Candidate) -> tuple[str, ...]:
        """Return the GPUs of a layout's ranks, where the job has named them all."""
        told = self._walk.registered
        named = told.gpus[: at.layout.world_size] if told is not None else ()
        return named if named and all(each in self._meter.gpus for each in named) else ()

    def _devices(self, at: Candidate) -> tuple[str, ...]:
        """Return the GPUs of a layout: as the job names them, else the first that are read."""
        used = at.layout.world_size
        told = self._walk.registered
        named = told.gpus[:used] if told is not None else ()
        return self._gpus(at) or self._meter.gpus[:used] or tuple(each for each in named if each)

    def _strangers(self, at: Candidate) -> str:
        """Say that the power that is read is not that of the job's GPUs; "" where it may be."""
        told = self._walk.registered
        return self._meter.strangers(told.gpus[: at.layout.world_size] if told is not None else ())

    def _is_done(self, point: Candidate) -> bool:
        return self.progress.point(point.id) is not None or point.id in self.progress.refused

    def _why_dark(self) -> str:
        told = self._lateness()
        return (
            f"its power was not known throughout any window of {FEWEST} checkpoint intervals in "
            f"{self._job.longest_s:.0f} s: a device or its counter was lost or reset"
            f"{f' ({told})' if told else ''}; look at the driver, and profile again"
        )

    def _lateness(self) -> str:
        """Say what keeps readings away, or how long there has been none; "" where all is well."""
        told = self._meter.trouble()
        at = self._at or self._walk.here
        ago_s = time.monotonic() - self._meter.known_until_s(self._gpus(at), at.layout.world_size)
        if told or ago_s < LATE_S:
            return told
        return f"the newest reading is {quantities.duration(ago_s)} old"

    def _why_unknown(self, share: float) -> str:
        """Say that a figure would be none: its interval reaches down to nothing."""
        told = self._lateness()
        return (
            f"its joules are known to ±{share:.0%} only, after "
            f"{self._job.longest_s:.0f} s{f' ({told})' if told else ''}; give it more time by "
            "job.longest_s, or see to it that its power is read throughout"
        )

    def _memory_gib(self, at: Candidate | None) -> float | None:
        """Return the peak memory of one rank: of its device where it has one, else resident."""
        if at is None:
            return None
        layout = str(at.layout)
        told = [
            each.peak_bytes
            for each in self._place.device_memory()
            if each.layout == layout and each.step > self._since
        ]
        peak = max(told, default=None)
        if peak is None:
            peak = self._ranks.peak_bytes(self._began_s, time.monotonic(), at.layout.world_size)
        return None if peak is None else round(peak / GIB, 3)

    def _keep(
        self, at: Candidate, rows: list[StepRow], numbers: WindowNumbers, better: str
    ) -> None:
        mine = [row for row in rows if row.step > self._well_since]
        paced = self._ranks.driven or any(row.computed_s > 0 for row in mine)
        point = MeasuredPoint(
            id=at.id,
            tokens_per_s=numbers.tokens_per_s,
            power_w=numbers.power_w,
            gpu_power_w=numbers.gpu_w,
            host_power_w=numbers.host_w,
            parked_w=numbers.parked_w,
            memory_gib=self._memory_gib(at),
            step_s=numbers.step_s,
            boundary_s=numbers.boundary_s,
            speed_share=numbers.speed_share,
            share=numbers.share,
            samples=numbers.periods,
            steps=len(mine),
            seconds=numbers.seconds,
            settled=numbers.settled,
            dominated_by=better,
            speed_source="simulated" if paced else "measured",
            power_source=power_source(numbers.quality),
            overruns=sum(row.overrun_s > REAL_OVERRUN_S for row in mine),
            computes_with=self._walk.computes_with.to_dict(),
        )
        self.progress = self.progress.with_point(point)
        if self._walk.arrivals:
            self._keep_switch(rows, numbers.step_s)
        evidence = self._walk.evidence.get(at.id)
        if evidence is not None:
            self.progress = replace(
                self.progress, evidence={**self.progress.evidence, at.id: evidence}
            )
        self.progress.save(self._folder)
        self._tell(point_line(at, point, self._job.precision))
        if said := compared(point, self.progress):
            self._tell(said)

    def _keep_switch(self, rows: list[StepRow], step_s: float) -> None:
        """Keep what the newest switch took, if the present point was reached by it."""
        arrival = self._walk.arrivals[-1]
        start = next((row for row in rows if row.step == arrival.step), None)
        steady = at_pace(rows, arrival.step, step_s) or next(
            (row for row in rows if row.step > arrival.step), None
        )
        if start is None or steady is None or arrival.step < self._since:
            return
        trained_s = (steady.step - start.step) * step_s
        seconds = max(0.0, due_s(steady) - due_s(start) - trained_s)
        energy_j = self._meter.all_j(due_s(start), due_s(start) + seconds) if seconds else 0.0
        cold = self._walk.here.layout not in self._built
        told = self._walk.evidence.get(arrival.target, {})
        first_s = max(0.0, seconds - arrival.elapsed_s)
        switch = MeasuredSwitch(
            origin=arrival.origin,
            target=arrival.target,
            seconds=seconds,
            energy_j=energy_j,
            cold=cold,
            spend=spend_of(told, arrival.origin, arrival.target, first_s=first_s, cold=cold),
        )
        self.progress = replace(self.progress, switches=(*self.progress.switches, switch))
        self.progress.save(self._folder)

    def _close(self, here: Candidate, target: Candidate, why: str) -> None:
        """Keep that the job did not switch between two measured points."""
        if self.progress.point(target.id) is None:
            return
        closed = (*self.progress.closed, (here.id, target.id))
        self.progress = replace(self.progress, closed=closed)
        self.progress.save(self._folder)
        self._tell(f"{here.id} to {target.id}: the switch was not made: {why}.")

    def _refuse(self, point: Candidate, why: str, *, unfit: bool = False) -> None:
        """Keep why a point has no numbers; `unfit`: the job could not be brought to it."""
        if self.progress.point(point.id) is not None:
            return
        self.progress = self.progress.with_refusal(point.id, why, unfit=unfit)
        self.progress.save(self._folder)
        self._tell(f"{point.id} ({point.layout}) has no numbers: {why}.")
