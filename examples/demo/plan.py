"""Every number that the demo chooses, in one place, with the reason.

Invariant: nothing here fixes the demo's outcome; the daemon decides what happens, and it is read
back from its journal.
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
"""Share of the recorded day that the submitted point needs for all steps."""

LEAST_STEPS = 104
"""Fewer would not reach the 100 steps over which losses are compared."""

DEVICE_TOKENS_PER_S = 168.0
"""Speed of one simulated device. A step of the submitted layout then takes 0.43 s, and two idle
cores compute it in a quarter of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPolicy:
    """The operator's limits, scaled to a day that lasts a minute and a half.

    `clock_dwell_s`: no point has a clock, so this is only the longest slot of a plan.
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
    """The parameters of one demo.

    Attributes:
        folder: where everything goes; made by the demo.
        day_s: real seconds that the recorded 24 h take.
        deadline_factor: the deadline, as a multiple of the time that the submitted point needs.
        profile_intervals: checkpoint intervals over which each layout is measured.
        act_from_step, act_by_step: the freeze ends between these steps, once the first plan exists:
            not before the first, so that the submitted point is measured, and at the second anyway.
        order_at, order_by: share of the steps from which the operator orders a further layout, if
            the run is at equal ranks, and from which in any case.
        lead_s: the day begins this long before the jobs start, so that the daemon can start.
        join_s: time from then to the first step, in both runs, however long joining takes.
        steps: optimizer steps of every run.
        device_tokens_per_s: speed of one simulated device.
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
        """Plan a demo whose recorded day takes `day_s`, and scale what depends on that."""
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
        """Fit steps and deadline to the measured speed: fewer steps if fewer fit into the day.

        The submitted point then needs half of the recorded day (`WORK_SHARE`), and the deadline is
        the end of the day; on a machine too slow for the simulated speed it comes later.
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
        """Seconds after which a run that is not over has failed."""
        return 2 * self.day_s + 60.0

    @property
    def run_starts_h(self) -> float:
        """Hour of the recorded day at which training begins."""
        begins = self.starts_at + timedelta(seconds=(self.lead_s + self.join_s) * self.compress)
        return begins.hour + begins.minute / 60

    @property
    def compress(self) -> float:
        """Recorded seconds that pass in one real second."""
        return DAY_S / self.day_s

    @property
    def catalogue(self) -> Path:
        """File of the catalogue that profiling writes."""
        return self.folder / "catalogue.toml"

    @property
    def logs(self) -> Path:
        """Folder of every process's output."""
        return self.folder / "logs"
