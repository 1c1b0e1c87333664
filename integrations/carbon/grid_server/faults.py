"""How a provider can misbehave, and when.

One member per misbehaviour that was seen at a real provider or that a network can produce. A rule
says for which provider, which requests and how often. Invariant: what happens is a function of the
rules, the requests so far and the server's clock; nothing is random.
"""

import threading
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.grid_server.answers import ServedProvider


class Fault(StrEnum):
    """Faults of an answer; the value is the word on the command line."""

    # Any provider: the line.
    CLOSED = "closed"  # the connection ends without a byte: the provider is dead
    HANG = "hang"  # no byte ever
    DRIP = "drip"  # a byte of the body now and then
    DRIP_HEADERS = "drip-headers"  # a header line without end
    TRUNCATED = "truncated"  # half of the body
    HUGE = "huge"  # more bytes than anybody should read
    REDIRECT = "redirect"  # 302 to elsewhere
    # Any provider: the answer as a whole.
    SERVER_ERROR = "server-error"  # 500, with the outage body of that provider
    RATE_LIMITED = "rate-limited"  # 429, Retry-After in seconds
    RATE_LIMITED_DATE = "rate-limited-date"  # 429, Retry-After as a date
    UNAUTHORIZED = "unauthorized"  # 401, JSON
    FORBIDDEN_TEXT = "forbidden-text"  # 403, plain text: zone or endpoint not in the plan
    FORBIDDEN_HTML = "forbidden-html"  # 403, HTML: bad login, or a proxy in between
    INVALID_SCOPE = "invalid-scope"  # 403, JSON: not in the plan, as WattTime says it
    BAD_REQUEST = "bad-request"  # 400: it does not understand the question
    NO_DATA = "no-data"  # 404: nothing known for this zone at present
    NOT_JSON = "not-json"  # 200, HTML
    NOT_OBJECT = "not-object"  # 200, JSON of another form
    EMPTY = "empty"  # 200, and no row at all
    # Any provider that tells the past: single intervals.
    GAP = "gap"  # intervals missing from the series
    REVISED = "revised"  # intervals told 20 % higher than before
    ZERO = "zero"  # a false zero
    NULL = "null"  # an interval listed without its value
    # Electricity Maps.
    SANDBOX = "sandbox"  # invented values with status 200
    WRONG_ZONE = "wrong-zone"  # it answers for where the caller seems to be (WattTime: too)
    UPDATED_EARLY = "updated-early"  # updatedAt before datetime
    MISSING_OPTIONALS = "missing-optionals"  # only zone, value and time
    # WattTime.
    TOKEN_EXPIRED = "token-expired"  # 401: every token given so far is void; log in again
    WARNINGS = "warnings"  # warnings in meta
    MODEL_CHANGED = "model-changed"  # another model date: the series is re-based
    IMPUTED = "imputed"  # rows with imputed data
    PERCENTILE = "percentile"  # percentiles where intensities are expected
    # NESO.
    EARLY_FIRST = "early-first"  # one more half hour before the one asked for
    WITHOUT_ACTUAL = "without-actual"  # forecasts only, as in regional answers
    # EIA-930.
    NUMBERS = "numbers"  # values as numbers, as in older answers
    # EIA-930, ENTSO-E and Open Electricity.
    NEW_FUEL = "new-fuel"  # a fuel code nobody has heard of
    MISSING_FUEL = "missing-fuel"  # no row for natural gas
    LOCAL_TIME = "local-time"  # London's time where UTC is documented (NESO's wind)
    MOVED = "moved"  # other ids of its resources (NESO's wind)
    NOT_SUCCESS = "not-success"  # 200, and success is false (NESO's wind)
    # ENTSO-E, Open-Meteo, Open Electricity; EIA-930 and NESO's wind too.
    LATE_ISSUE = "late-issue"  # forecasts come as late as they may, or later
    RESOLUTION = "resolution"  # a day in quarter hours, the next in hours (ENTSO-E)
    ENTITIES = "entities"  # a document type with entities that grow (ENTSO-E)
    WRONG_UNIT = "wrong-unit"  # another unit than was asked for
    SPIKE = "spike"  # intervals with a value that cannot be true


LINE = frozenset(
    {
        Fault.CLOSED,
        Fault.HANG,
        Fault.DRIP,
        Fault.DRIP_HEADERS,
        Fault.TRUNCATED,
        Fault.HUGE,
    }
)
"""Faults of the connection: the answer itself is right."""

WHOLE = frozenset(
    {
        Fault.REDIRECT,
        Fault.SERVER_ERROR,
        Fault.RATE_LIMITED,
        Fault.RATE_LIMITED_DATE,
        Fault.UNAUTHORIZED,
        Fault.FORBIDDEN_TEXT,
        Fault.FORBIDDEN_HTML,
        Fault.INVALID_SCOPE,
        Fault.BAD_REQUEST,
        Fault.NO_DATA,
        Fault.NOT_JSON,
        Fault.NOT_OBJECT,
        Fault.EMPTY,
        Fault.TOKEN_EXPIRED,
    }
)
"""Faults that stand in place of the answer."""

ONLY: dict[Fault, frozenset[ServedProvider]] = {
    **dict.fromkeys(
        (Fault.SANDBOX, Fault.UPDATED_EARLY, Fault.MISSING_OPTIONALS),
        frozenset({ServedProvider.ELECTRICITY_MAPS}),
    ),
    Fault.WRONG_ZONE: frozenset(
        {
            ServedProvider.ELECTRICITY_MAPS,
            ServedProvider.WATTTIME,
            ServedProvider.ENTSOE,
            ServedProvider.OPEN_METEO,
            ServedProvider.OPEN_ELECTRICITY,
            ServedProvider.EIA930,
            ServedProvider.NESO,
        }
    ),
    **dict.fromkeys((Fault.RESOLUTION, Fault.ENTITIES), frozenset({ServedProvider.ENTSOE})),
    Fault.SPIKE: frozenset(
        {
            ServedProvider.ENTSOE,
            ServedProvider.OPEN_METEO,
            ServedProvider.EIA930,
            ServedProvider.NESO,
        }
    ),
    Fault.WRONG_UNIT: frozenset(
        {
            ServedProvider.ENTSOE,
            ServedProvider.OPEN_METEO,
            ServedProvider.OPEN_ELECTRICITY,
            ServedProvider.EIA930,
            ServedProvider.NESO,
        }
    ),
    Fault.LATE_ISSUE: frozenset(
        {ServedProvider.ENTSOE, ServedProvider.EIA930, ServedProvider.NESO}
    ),
    **dict.fromkeys(
        (
            Fault.TOKEN_EXPIRED,
            Fault.WARNINGS,
            Fault.MODEL_CHANGED,
            Fault.IMPUTED,
            Fault.PERCENTILE,
        ),
        frozenset({ServedProvider.WATTTIME}),
    ),
    **dict.fromkeys(
        (
            Fault.EARLY_FIRST,
            Fault.WITHOUT_ACTUAL,
            Fault.LOCAL_TIME,
            Fault.MOVED,
            Fault.NOT_SUCCESS,
        ),
        frozenset({ServedProvider.NESO}),
    ),
    Fault.NUMBERS: frozenset({ServedProvider.EIA930}),
    **dict.fromkeys(
        (Fault.NEW_FUEL, Fault.MISSING_FUEL),
        frozenset({ServedProvider.EIA930, ServedProvider.ENTSOE, ServedProvider.OPEN_ELECTRICITY}),
    ),
}
"""Faults that only some providers can have; the others fit all."""

LONG_GAP = timedelta(hours=46)
"""What a national provider once left out (NESO, October 2023)."""

ONCE = frozenset({Fault.TOKEN_EXPIRED})
"""Faults that happen once by default: the next request succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveFault:
    """One fault that is switched on.

    Attributes:
        service: for whom; None: for every provider that can have it.
        zone: only in this zone (as its provider spells it); "": all.
        path: only where the path contains this; "": everywhere.
        times: how many answers still suffer; None: all.
        during: server time [from, to) of the requests; None at either end: open.
        about: of a fault of single intervals, those that begin in [from, to). None: the 46 h
            that ended two hours ago (gap), the last two hours (zero, null), all older than 6 h
            (revised).
        retry_after_s: what a 429 says.
    """

    fault: Fault
    service: ServedProvider | None = None
    zone: str = ""
    path: str = ""
    times: int | None = None
    during: tuple[datetime | None, datetime | None] = (None, None)
    about: tuple[datetime, datetime] | None = None
    retry_after_s: int = 60

    def fits(self, service: ServedProvider, zone: str, path: str, now: datetime) -> bool:
        """Say whether a request made now meets this rule."""
        since, until = self.during
        return (
            service in ({self.service} if self.service else ONLY.get(self.fault, {service}))
            and (not self.zone or self.zone == zone)
            and self.path in path
            and (since is None or since <= now)
            and (until is None or now < until)
        )

    def concerns(self, start: datetime, now: datetime) -> bool:
        """Say whether the interval that begins at `start` suffers, for a request made `now`."""
        hours = timedelta(hours=1)
        first, last = self.about or {
            Fault.GAP: (now - 2 * hours - LONG_GAP, now - 2 * hours),
            Fault.REVISED: (datetime.min.replace(tzinfo=now.tzinfo), now - 6 * hours),
        }.get(self.fault, (now - 2 * hours, now))
        return first <= start < last


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFaults:
    """The faults of one answer."""

    rules: tuple[ActiveFault, ...] = ()
    now: datetime

    def has(self, fault: Fault) -> bool:
        """Return whether the answer has a fault."""
        return any(rule.fault is fault for rule in self.rules)

    def hits(self, fault: Fault, start: datetime) -> bool:
        """Say whether the interval that begins at `start` suffers from it."""
        return any(rule.fault is fault and rule.concerns(start, self.now) for rule in self.rules)

    def instead(self) -> ActiveFault | None:
        """Return the fault that replaces the answer."""
        return next((rule for rule in self.rules if rule.fault in WHOLE), None)

    def line(self) -> Fault | None:
        """Return the fault of the connection."""
        return next((rule.fault for rule in self.rules if rule.fault in LINE), None)


@dataclass(slots=True)
class FaultBook:
    """The rules that are switched on, shared by the threads of the server."""

    _rules: list[ActiveFault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rule: ActiveFault) -> None:
        """Switch a fault on.

        Raises:
            InputInvalid: that provider cannot have it.
        """
        able = ONLY.get(rule.fault)
        if rule.service is not None and able is not None and rule.service not in able:
            names = ", ".join(sorted(able))
            raise InputInvalid(f"{rule.service} cannot have the fault {rule.fault}: only {names}")
        if rule.times is None and rule.fault in ONCE:
            rule = replace(rule, times=1)
        with self._lock:
            self._rules.append(rule)

    def clear(self, fault: Fault | None = None, service: ServedProvider | None = None) -> None:
        """Switch off one fault, those of one provider, or all."""
        with self._lock:
            self._rules = [
                rule
                for rule in self._rules
                if (fault and rule.fault is not fault) or (service and rule.service is not service)
            ]

    def rules(self) -> tuple[ActiveFault, ...]:
        """Return the rules that are on, oldest first."""
        with self._lock:
            return tuple(self._rules)

    def take(self, service: ServedProvider, zone: str, path: str, now: datetime) -> AnswerFaults:
        """Return the faults of this answer, and count it.

        Of the faults that stand in place of the answer only the oldest is taken: ten rules with
        `times=1` spoil ten answers one after the other.
        """
        with self._lock:
            fitting = [rule for rule in self._rules if rule.fits(service, zone, path, now)]
            blocking = [rule for rule in fitting if rule.fault in LINE | WHOLE][:1]
            taken = blocking or fitting
            for rule in taken:
                self._count(rule)
            return AnswerFaults(rules=tuple(taken), now=now)

    def _count(self, rule: ActiveFault) -> None:
        """Count one use of a rule with a limit; call it with the lock held."""
        if rule.times is None:
            return
        at = next(i for i, each in enumerate(self._rules) if each is rule)
        if rule.times > 1:
            self._rules[at] = replace(rule, times=rule.times - 1)
        else:
            del self._rules[at]
