"""When a run is at its pace after a switch: the end of the first step that takes as long as usual.

A new layout that stands has trained nothing yet: what is compiled for it is compiled in its first
steps. So steps are timed until it is known what is usual, and the daemon is told.

Invariant: nothing here is waited for, and a run that leaves the layout before tells nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from wattmesh.reconfig.hook.job import Job, SwitchReporter
from wattmesh.reconfig.launch.generation import Generation, Purpose
from wattmesh.reconfig.launch.peers import boot_id
from wattmesh.reconfig.switch import AT_PACE, SwitchState

STEPS = 8
"""Steps that are timed after a switch; the later half of them says what is usual."""

TOLERANCE = 0.05
"""A step is at normal pace that takes at most this share longer than usual."""


class FirstSteps:
    """Times the first steps after a switch, on every rank; the leader tells."""

    def __init__(self, job: Job) -> None:
        """Have nothing to time."""
        self._job = job
        self._generation: Generation | None = None
        self._number = 0
        self._from_s = 0.0
        self._steps: list[tuple[float, float]] = []

    def begin(self, generation: Generation, now_s: float) -> None:
        """Train in `generation` from `now_s` on, by the monotonic clock; repeats change nothing."""
        if generation.number == self._number:
            return
        note, self._number = generation.switch, generation.number
        # On another host, or after a reboot, nobody can tell how long ago it began.
        known = note is not None and note.boot == boot_id()
        self._generation = generation if known else None
        self._from_s, self._steps = now_s, []

    def resume(self, now_s: float) -> None:
        """Begin the next step at `now_s`: what a boundary took is no part of one."""
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
        """Repeat the last word on the switch, with when the run was at its pace."""
        note = generation.switch
        if note is None:
            return
        back = generation.purpose is Purpose.ROLLBACK
        at_pace_s = round(at_pace(self._steps) - note.began_s, 4)
        story = SwitchReporter(self._job, generation, replace(note, evidence={**note.evidence}))
        story.tell(
            SwitchState.ROLLED_BACK if back else SwitchState.CONFIRMED,
            detail=note.why if back else "",
            evidence={AT_PACE: at_pace_s},
        )


def at_pace(steps: Sequence[tuple[float, float]]) -> float:
    """Give the end of the first step at normal pace, of (end, seconds) in order.

    What is usual is the median of the later half; the last step stands in where none is that fast.
    """
    usual_s = median(took_s for _, took_s in steps[len(steps) // 2 :])
    fit = (ended_s for ended_s, took_s in steps if took_s <= (1.0 + TOLERANCE) * usual_s)
    return next(fit, steps[-1][0])
