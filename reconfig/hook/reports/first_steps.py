"""Finds when a run is at normal pace after a switch: the end of the first step of usual length.

A switch is confirmed before the new layout has trained a step, and torch compiles for that layout
in the first steps. So the first `STEPS` steps are timed, and the daemon is told when the run was at
pace.

Invariant: nothing waits for this, and a run that leaves the layout earlier reports nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from wattmesh.reconfig.hook.job import AttachedJob, SwitchReporter
from wattmesh.reconfig.launch.generation import Generation, Purpose
from wattmesh.reconfig.launch.peers import boot_id
from wattmesh.reconfig.switch import AT_PACE, SwitchState

STEPS = 8
"""How many steps are timed after a switch; the median of the later half is the usual time."""

TOLERANCE = 0.05
"""A step is at normal pace if it takes at most this share longer than usual."""


class FirstSteps:
    """Times the first steps after a switch, on every rank; the leader reports."""

    def __init__(self, job: AttachedJob) -> None:
        """Start idle, until `begin`."""
        self._job = job
        self._generation: Generation | None = None
        self._number = 0
        self._from_s = 0.0
        self._steps: list[tuple[float, float]] = []

    def begin(self, generation: Generation, now_s: float) -> None:
        """Start timing `generation` at `now_s` (monotonic clock); repeated calls change nothing."""
        if generation.number == self._number:
            return
        note, self._number = generation.switch, generation.number
        # `began_s` is monotonic time, which means nothing on another host or after a reboot.
        known = note is not None and note.boot == boot_id()
        self._generation = generation if known else None
        self._from_s, self._steps = now_s, []

    def resume(self, now_s: float) -> None:
        """Begin the next step at `now_s`, so that the time of a boundary is not counted."""
        self._from_s = now_s

    def step(self, now_s: float) -> None:
        """End a step at `now_s`."""
        if self._generation is None:
            return
        self._steps.append((now_s, now_s - self._from_s))
        self._from_s = now_s
        if len(self._steps) == STEPS:
            self._tell(self._generation)
            self._generation = None

    def _tell(self, generation: Generation) -> None:
        """Report the final state of the switch again, with the time when the run was at pace."""
        note = generation.switch
        if note is None:
            return
        back = generation.purpose is Purpose.ROLLBACK
        at_pace_s = round(at_pace(self._steps) - note.began_s, 4)
        reporter = SwitchReporter(self._job, generation, replace(note, evidence={**note.evidence}))
        reporter.tell(
            SwitchState.ROLLED_BACK if back else SwitchState.CONFIRMED,
            detail=note.why if back else "",
            evidence={AT_PACE: at_pace_s},
        )


def at_pace(steps: Sequence[tuple[float, float]]) -> float:
    """Return when the first step at normal pace ended.

    The usual time is the median of the later half; if no step is that fast, the last one counts.

    Args:
        steps: (end, seconds taken) of each step, in order.
    """
    usual_s = median(took_s for _, took_s in steps[len(steps) // 2 :])
    fit = (ended_s for ended_s, took_s in steps if took_s <= (1.0 + TOLERANCE) * usual_s)
    return next(fit, steps[-1][0])
