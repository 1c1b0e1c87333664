"""What demand response is given and what it answers: triggers, signals, caps, windows. Pure."""

from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import StrEnum

from wattmesh.policies.powercap.cap_windows import Window

ESTIMATED, PROFILE, SIMULATED = "estimated", "profile", "simulated"
"""What a trigger may be allowed to rest on beyond measured values and issued forecasts."""


class CapOrigin(StrEnum):
    """Who set a power cap: a person, or demand response by the grid's intensity or its price."""

    OPERATOR = "operator"
    CARBON = "carbon"
    PRICE = "price"


TRIGGERED = (CapOrigin.CARBON, CapOrigin.PRICE)
"""The origins that are demand response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerFacts:
    """Why demand response set a cap, as it was known when the cap was announced.

    Attributes:
        value: mean of the signal over the cap's hours. `threshold`: from which on hours count.
        issued_at: when what lay ahead was issued; None: not known.
    """

    signal: str
    unit: str
    value: float
    threshold: float
    issued_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSlot:
    """The value of [start, end), aware UTC, in the unit of its series."""

    start: datetime
    end: datetime
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSeries:
    """What is known of the signal that a trigger follows.

    Attributes:
        slots: from the start of the local day on, as far as known; none overlap.
        issued_at: when the newest of what lies ahead was issued; None: nothing does.
        doubt: why nothing may rest on it, as a clause; "" when it may.
        note: what of it was left out, as a clause; "" for nothing.
    """

    name: str
    unit: str
    slots: tuple[SignalSlot, ...] = ()
    issued_at: datetime | None = None
    doubt: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What triggers caps, and which.

    Attributes:
        above: hours at this value or above it, in the signal's unit. `worst_hours`: so many of each
            local day, 1 to 23. At least one of the two is given.
        cap_w: the cap. `cap_share`: the same as a share of the site's highest power, in (0, 1]. One
            of the two is given.
        notice_s: least time from the announcement to the start, and from its withdrawal.
        longest_hours, pause_hours: of a window, and between two of this trigger.
        ahead_hours: how far ahead windows begin.
        hysteresis: how far a window may fall below its threshold and stand, in [0, 1): a share of
            `above`, and of the day's range of values.
        timezone: in which days begin.
    """

    origin: CapOrigin
    above: float | None = None
    worst_hours: int | None = None
    cap_w: float | None = None
    cap_share: float | None = None
    notice_s: float = 3600.0
    longest_hours: int = 4
    pause_hours: int = 2
    ahead_hours: int = 24
    hysteresis: float = 0.1
    timezone: tzinfo


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSource:
    """One trigger and what it may rest on.

    Attributes:
        allow: of `ESTIMATED`, `PROFILE`, `SIMULATED`.
        prices: provider:zone whose day-ahead prices are followed; "": the decision signal's
            intensity is.
        stale_after_s: most seconds since something new was told; None: by the provider's pace.
    """

    trigger: Trigger
    allow: frozenset[str] = frozenset()
    stale_after_s: float | None = None
    prices: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggeredCap:
    """A cap that a trigger announced before.

    Attributes:
        cap_w: its watts; None: not known.
        ended_at: when it was ended or taken back; None: it was not. `by_operator`: by a person.
    """

    id: int
    start: datetime
    until: datetime
    cap_w: float | None = None
    ended_at: datetime | None = None
    by_operator: bool = False

    @property
    def stands(self) -> bool:
        """Whether nobody ended it."""
        return self.ended_at is None

    @property
    def held(self) -> Window:
        """When it holds or held; empty when it was taken back before its start."""
        return self.start, self.until if self.ended_at is None else min(self.ended_at, self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapWindow:
    """A cap to announce, and why."""

    start: datetime
    until: datetime
    cap_w: float
    trigger: TriggerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """A cap to take back before it begins. `why`: a clause."""

    id: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a trigger makes of its signal now.

    Attributes:
        sentence: what it does, for people.
        held: nothing is triggered, for a reason that a person may want to look at.
    """

    origin: CapOrigin
    sentence: str
    announce: tuple[CapWindow, ...] = ()
    withdraw: tuple[Withdrawal, ...] = ()
    held: bool = False
