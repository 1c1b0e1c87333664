"""How far the joint plan of all runs is, and which room it leaves each.

Invariant: rooms are given out only while every run that trains was part of the question, under the
same terms and the same caps; runs that ended only leave more. Else each run plans alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from wattmesh.policies.decision import Observation, RoomStep
from wattmesh.policies.rules.follow import FRESH

Key = tuple[object, ...]
Rooms = Mapping[str, tuple[RoomStep, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTerms:
    """What a joint plan rests on: the caps, and every run with its own terms.

    Attributes:
        force: end and watts of the cap in force; None: none is.
        ahead: start, end and watts of each cap that is announced.
    """

    force: tuple[datetime, float] | None = None
    ahead: frozenset[tuple[datetime, datetime, float]] = frozenset()
    runs: Mapping[str, Key] = field(default_factory=dict)

    @property
    def capped(self) -> bool:
        """Whether a cap is in force or announced."""
        return self.force is not None or bool(self.ahead)

    def hold(self, now: "JointTerms") -> bool:
        """Say whether a plan made under these terms may be followed under those of now.

        A cap that was announced and has begun is the one that was planned for.
        """
        ahead = {each for each in self.ahead if each[1:] != now.force}
        begun = len(ahead) < len(self.ahead) and self.force is None
        same = (self.force == now.force or begun) and ahead == now.ahead
        return same and all(self.runs.get(run) == each for run, each in now.runs.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class JointState:
    """How far the joint plan is.

    Attributes:
        rooms: by run; empty while there are none. `terms`: that they rest on.
        gap: most that a better joint plan could save, as a share of the bound.
        solve_s: seconds that the newest answer took; None before the first.
        waiting: a question is not answered yet.
        reason: why the newest question has no joint plan, as a clause; "" when it has one.
        trouble: why the newest question was not answered; "" when it was. `failures`: in a row.
    """

    rooms: Rooms = field(default_factory=dict)
    terms: JointTerms = field(default_factory=JointTerms)
    made_at: datetime | None = None
    gap: float | None = None
    solve_s: float | None = None
    waiting: bool = False
    reason: str = ""
    trouble: str = ""
    failures: int = 0

    def room(self, seen: Observation, now_terms: JointTerms, run: str) -> tuple[RoomStep, ...]:
        """Give a run's room under the joint plan; empty where it plans alone."""
        if not self.rooms or not self.fresh(seen.now) or not self.terms.hold(now_terms):
            return ()
        return self.rooms.get(run, ())

    def fresh(self, now: datetime) -> bool:
        """Say whether the plan is young enough to be followed."""
        return self.made_at is not None and self.made_at <= now < self.made_at + FRESH
