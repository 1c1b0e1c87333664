"""What is known of a finished run of the demo, as types. Pure.

Invariant: everything here was read back from a journal or from the job's step log.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from examples.demo.evidence import RunCurves, Span
from wattmesh.reconfig.step_log import StepRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchFact:
    """One confirmed switch, as the run reported it.

    Attributes:
        step: the step of the boundary.
        seconds: from the boundary to the first step; None if unreported.
        probe_difference: relative difference of the probe loss before and after.
        decided_by: "plan", "price rule", "deadline guard" or "operator".
    """

    step: int
    from_point: str
    to_point: str
    seconds: float | None
    probe_difference: float | None
    requested_by: str
    decided_by: str
    reason: str
    predicted_g: float | None
    switch_cost_g: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What one run did, read back from its step log and its journal.

    `saved_ug`: as `wattmesh budget` reports it; 0 for a run that was never switched.
    """

    steps: tuple[StepRow, ...]
    switches: tuple[SwitchFact, ...]
    carbon_ug: int
    baseline_ug: int
    saved_ug: int
    energy_mj: int
    unobserved_s: float
    deadline_met: bool
    deadline_slack_s: float

    @property
    def losses(self) -> tuple[float, ...]:
        """Loss after each step."""
        return tuple(row.loss for row in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """When a run's first step begins: time 0 of everything reported about it."""

    at: datetime
    monotonic_s: float

    @classmethod
    def after(cls, seconds: float = 0.0) -> "Beginning":
        """Return the moment `seconds` from now."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        return cls(at=at, monotonic_s=time.monotonic() + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReadBack:
    """One run as it was read back.

    Attributes:
        facts: for the report.
        curves: for the picture.
        measured, forecast: grid intensity from the run's beginning to its deadline, g/kWh.
        deadline_s: seconds from the beginning to the deadline.
        bound_g: the least emissions that any schedule could have reached; None if not computed.
    """

    facts: RunFacts
    curves: RunCurves
    measured: tuple[Span, ...]
    forecast: tuple[Span, ...]
    deadline_s: float
    bound_g: float | None
