"""What `wattmesh policy bench --jobs` found: a row for each rule, and the bound. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_COME, GREEDY, ALONE = "first-come", "greedy", "each-alone"
JOINT, AHEAD = "joint", "joint-ahead"
RULES = (FIRST_COME, GREEDY, ALONE, JOINT, AHEAD)

WORTH_A_SHARE = 0.01
"""Where the bound is nearer to the peer than this share of its grams, no share is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """One job under one rule. `done_h`: from the stream's start; None: not within the time."""

    job: str
    done_h: float | None
    deadline_h: float
    deadline_met: bool
    carbon_g: float
    switches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """One rule on one trace.

    Attributes:
        carbon_g: of all runs and of GPUs that none owned, `idle_g` of these.
        missed: jobs that are late. `lost`: those of them that `first-come` has in time.
        cap_exceeded_s: the longest time on end above the cap. `gpus_exceeded_s`: seconds in which
            runs owned more GPUs than there are.
        bounded: whether the bound holds for it: no job is done later than the bound allows, and it
            keeps the limits that plans keep.
        solve_s: seconds to plan everything.
    """

    policy: str
    trace: str
    carbon_g: float
    idle_g: float
    energy_j: float
    missed: tuple[str, ...]
    lost: tuple[str, ...]
    switches: int
    cap_exceeded_s: float
    gpus_exceeded_s: float
    most_w: float
    bounded: bool
    solve_s: float
    jobs: tuple[JobOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """All rules on one trace.

    Attributes:
        bound_g: below which no rule comes whose jobs are done in time, or when the joint plans are;
            None: there is no joint plan.
        peer: the best of `each-alone` and `greedy`: of those that the bound holds for, by deadlines
            lost, then by grams.
        slot_s: the control interval.
        intervals, filled: of the whole trace; how many of them were missing or not plausible, and
            have the value of the one before.
    """

    stream: str
    trace: str
    slot_s: float
    hours: float
    rows: tuple[RuleRow, ...]
    bound_g: float | None
    peer: str
    intervals: int = 0
    filled: int = 0

    def row(self, policy: str) -> RuleRow:
        """Give the row of a rule."""
        return next(each for each in self.rows if each.policy == policy)

    def share_of_bound_gain(self, policy: str) -> float | None:
        """Give which share of the bound's gain over the peer a rule has; None: not known."""
        row, peer = self.row(policy), self.row(self.peer)
        if self.bound_g is None or not (row.bounded and peer.bounded):
            return None
        peer_g = peer.carbon_g
        room_g = peer_g - self.bound_g
        return (peer_g - row.carbon_g) / room_g if room_g >= WORTH_A_SHARE * peer_g else None


def peer_of(rows: Sequence[RuleRow]) -> str:
    """Give the rule that a joint plan is compared with, if possible one that the bound holds for.

    Who takes longer than the bound allows saves grams that nobody else may.
    """
    peers = [each for each in rows if each.policy in {GREEDY, ALONE}]
    return min(peers, key=lambda each: (not each.bounded, len(each.lost), each.carbon_g)).policy
