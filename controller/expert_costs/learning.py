"""What the learner holds of one run, and what of it goes into the journal and comes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattmesh.controller.expert_costs.kept import KeptLearning
from wattmesh.controller.expert_costs.strength import JudgedPairs, StrengthLoop
from wattmesh.policies.experts.costs import OfflineSweep
from wattmesh.policies.experts.live_spans import RunCosts, RunCount
from wattmesh.policies.experts.published import Telling
from wattmesh.policies.experts.strength import StrengthStep

UNKNOWN_AGE_S = 1e9


@dataclass(slots=True)
class Learning:
    """What the learner holds of one run. `held_at_s`: monotonic; when it last knew it to hold.

    Attributes:
        loop: of its strength, and `step` what that last said; None: nothing yet.
        launch, seq: of the newest count that was learned from. `heard`: that count; None until this
            daemon hears one.
        stays: why experts that lie elsewhere keep the lean that they had, as was said last.
        in_journal: the pairs that are judged for good, as the journal has them.
        dropped: pairs of the launch that were dropped unheard, as was said.
        kept: whether the journal has all of it.
    """

    costs: RunCosts = field(default_factory=RunCosts)
    telling: Telling = field(default_factory=Telling)
    held_at_s: float = 0.0
    loop: StrengthLoop = field(default_factory=StrengthLoop)
    step: StrengthStep | None = None
    launch: str = ""
    seq: int = 0
    heard: RunCount | None = None
    stays: str = ""
    in_journal: JudgedPairs = field(default_factory=JudgedPairs)
    dropped: int = 0
    kept: bool = True

    def is_new(self, count: RunCount) -> bool:
        """Note a count; return whether it was not learned from yet, by this daemon or another."""
        if count.launch == self.launch and count.seq <= self.seq:
            return False
        self.dropped = self.dropped if count.launch == self.launch else 0
        self.launch, self.seq, self.kept = count.launch, count.seq, False
        self.heard = count
        return True

    @property
    def newest(self) -> RunCount | None:
        """The newest count, of this daemon or the one before; None: none is known."""
        return self.heard or self.loop.before

    def judged_in(self, launch: str) -> int | None:
        """Return the step up to which pairs of a launch are judged for good; None: of none yet."""
        return self.in_journal.step if self.in_journal.launch == launch else None

    def newly_dropped(self) -> int:
        """Return how many pairs were dropped that nobody has said yet, and take them for said."""
        newest = self.heard.dropped if self.heard is not None else 0
        more, self.dropped = newest - self.dropped, max(newest, self.dropped)
        return max(0, more)

    @property
    def untaken(self) -> bool:
        """Whether the run has not taken yet what it was told last, as far as it says so."""
        told, newest = self.telling.told, self.newest
        if told is None or newest is None or newest.version == 0:
            return False
        return newest.version != told.version

    def to_keep(
        self, telling: Telling, sweeps: Mapping[str, OfflineSweep], now_s: float, monotonic_s: float
    ) -> KeptLearning:
        """Give what is kept, with what is about to be told.

        Args:
            telling: in the place of what is told now.
            sweeps: by GPU, of the settings.
            now_s: wall time.
            monotonic_s: the same moment by the clock of `held_at_s`.
        """
        return KeptLearning(
            costs=self.costs,
            telling=telling,
            quality=self.loop.quality,
            before=self.loop.before,
            step=self.step,
            launch=self.launch,
            seq=self.seq,
            held_at_s=now_s - (monotonic_s - self.held_at_s),
            sweeps=sweeps,
            judged=self.loop.judged,
            dropped=self.dropped,
            stays=self.stays,
        )


def taken_up(
    kept: KeptLearning, sweeps: Mapping[str, OfflineSweep], now_s: float, monotonic_s: float
) -> tuple[Learning, str]:
    """Go on from what was kept; say what of it is learned anew, "" where nothing is.

    What is told stays in any case. Settings that name another sweep, or none any more, make the
    costs of the run unknown, all together: of half of a group nothing can be said.
    """
    named = {**kept.sweeps, **sweeps}
    changed = [gpu for gpu in named if kept.sweeps.get(gpu) != sweeps.get(gpu)]
    age_s = now_s - kept.held_at_s
    learning = Learning(
        costs=RunCosts(before=kept.costs.before) if changed else kept.costs,
        telling=kept.telling,
        # Wall time that went back says nothing of how long ago it was.
        held_at_s=monotonic_s - (age_s if age_s >= 0 else UNKNOWN_AGE_S),
        loop=StrengthLoop(quality=kept.quality, before=kept.before, judged=kept.judged),
        step=kept.step,
        launch=kept.launch,
        seq=kept.seq,
        stays=kept.stays,
        in_journal=kept.judged,
        dropped=kept.dropped,
    )
    if not changed:
        return learning, ""
    gpus = "a GPU" if len(changed) == 1 else f"{len(changed)} GPUs"
    return learning, f"the settings name another sweep of {gpus}, or none any more"
