"""Every number that the demo chooses, in one place, with why.

Invariant: nothing about the demo's outcome is in here; what happens is decided by the daemon and
read back from its journal.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from wattmesh.reconfig.catalogue import Catalogue

TRACE = Path(__file__).with_name("gb-2023-05-26.csv")
ZONE = "GB"
ATTRIBUTION = (
    "Carbon intensity: National Energy System Operator, Carbon Intensity API "
    "(carbonintensity.org.uk), CC BY 4.0."
)
DAY_S = 86_400.0

WORK_SHARE = 12 / 24
"""Of the recorded day, that the submitted point needs for all steps."""

LEAST_STEPS = 104
"""Fewer would not reach the 100 steps over which losses are compared."""

DEVICE_TOKENS_PER_S = 168.0
"""Pace of one simulated device. A step of the submitted layout then takes 0.43 s, and two cores
with nothing else to do compute it in a quarter of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPolicy:
    """The operator's limits, scaled to a day that lasts a minute and a half.

    `clock_dwell_s`: no point has a clock; plans are made in slots of this length at most.
    """

    dwell_s: float = 4.0
    clock_dwell_s: float = 1.0
    gain_factor: float = 1.5
    guard_margin: float = 0.02
    max_switches_per_day: int = 20
    switch_timeout_s: float = 30.0
    failed_switch_s: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """What is asked of one demo.

    Attributes:
        folder: where everything goes; made by the demo.
        day_s: real seconds that the recorded 24 h take.
        deadline_factor: the deadline, in times of what the submitted point needs.
        profile_intervals: checkpoint intervals that each layout is measured over.
        act_from_step, act_by_step: everything is frozen until the run was measured where it was
            submitted and the first plan is there; the latter is not waited for beyond the second.
        order_at, order_by: share of the steps from which the operator orders a further layout at
            equal ranks, and at any.
        lead_s: the day begins so long before the jobs are let go: time for the daemon to start.
        join_s: from then to the first step, in both runs, however long joining took.
        steps: optimizer steps of every run.
        device_tokens_per_s: pace of one simulated device.
        deadline_after_s: seconds after registration by which the run must be done.
    """

    folder: Path
    day_s: float = 90.0
    steps: int = LEAST_STEPS
    device_tokens_per_s: float = DEVICE_TOKENS_PER_S
    deadline_after_s: float = 89.0
    deadline_factor: float = 2.0
    lead_s: float = 2.5
    join_s: float = 2.0
    act_from_step: int = 9
    act_by_step: int = 21
    order_at: float = 0.6
    order_by: float = 0.7
    ordered_point: str = "C"
    freeze_reason: str = "until the run is measured where it was submitted, and planned"
    order_reason: str = "trial of another layout at equal ranks before the long run"
    run_name: str = "train"
    baseline: str = "A"
    preset: str = "demo"
    layout: str = "dp_shard=2,tp=2"
    boundary_every: int = 4
    profile_intervals: int = 2
    cycle_s: float = 0.25
    sample_s: float = 0.25
    processes: int = 4
    seed: int = 0
    starts_at: datetime = datetime(2023, 5, 26, 12, tzinfo=UTC)
    day_words: str = "Great Britain, 26 May 2023 from noon"
    policy: DemoPolicy = field(default_factory=DemoPolicy)

    @classmethod
    def lasting(cls, day_s: float, *, folder: Path) -> "DemoPlan":
        """Plan a demo whose recorded day takes `day_s`; all that follows from it is scaled."""
        usual = cls(folder=folder)
        scale = day_s / usual.day_s
        return replace(
            usual,
            day_s=day_s,
            steps=max(usual.boundary_every * 4, round(usual.steps * scale)),
            deadline_after_s=usual.deadline_after_s * scale,
            policy=replace(usual.policy, dwell_s=usual.policy.dwell_s * scale),
        )

    def fitted(self, catalogue: Catalogue, tokens_per_step: int) -> "DemoPlan":
        """Fit work and deadline to what was measured: fewer steps where fewer fit into the day.

        The submitted point is to need half of the recorded day, and the deadline is the day's end,
        as a patient user would set it; on a machine too slow for the pace it comes later.
        """
        tokens_per_s = catalogue.point(self.baseline).tokens_per_s
        affordable = round(self.day_s * WORK_SHARE * tokens_per_s / tokens_per_step)
        steps = max(min(self.steps, LEAST_STEPS), min(self.steps, affordable))
        steps -= steps % self.boundary_every
        needed_s = steps * tokens_per_step / tokens_per_s
        return replace(
            self, steps=steps, deadline_after_s=round(self.deadline_factor * needed_s, 1)
        )

    @property
    def limit_s(self) -> float:
        """After so long a run that is not over has failed."""
        return 2 * self.day_s + 60.0

    @property
    def run_starts_h(self) -> float:
        """Hour of the recorded day at which training begins."""
        begins = self.starts_at + timedelta(seconds=(self.lead_s + self.join_s) * self.compress)
        return begins.hour + begins.minute / 60

    @property
    def compress(self) -> float:
        """Recorded seconds that pass in one second."""
        return DAY_S / self.day_s

    @property
    def catalogue(self) -> Path:
        """The catalogue that profiling writes."""
        return self.folder / "catalogue.toml"

    @property
    def logs(self) -> Path:
        """What every process said."""
        return self.folder / "logs"
