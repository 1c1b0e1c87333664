"""Plans of budgets, made and stored: a curve of expected intensity x expected power over a period.

A plan is made when its period begins, or as soon afterwards as a daemon runs. Invariant: after any
outage, `BudgetPlans.due` makes the plans that are missing now; a plan is never changed, a newer one
is stored beside it (docs/reports.md).
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from wattmesh.controller.accounting.budgets.periods import Period, period_of
from wattmesh.controller.accounting.unclaimed import unclaimed_spent
from wattmesh.controller.journal.energy.budgets import PlanRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.errors import FixInput
from wattmesh.policies.accounting.budget import Curve, HourProfile, Spending, hour_profile, spread
from wattmesh.quantities import grams
from wattmesh.telemetry.carbon import Signal

UG = 1_000_000
CLUSTER = "cluster"
"""The budget of everything; any other name is a run's."""

HISTORY = timedelta(days=28)
"""Expected values are those of the same hours in this many days before: four weeks."""

WEEK = timedelta(days=7)
"""Power of fewer days shows no weekly pattern, so an even load is assumed. With less history of the
grid than this, a patient plan waits a cycle: the poller may be about to fill it.
"""

LATEST = timedelta(days=1)
"""Joules are booked to a run at most so long after it was heard: to the end of its slot."""

PROMPT = timedelta(hours=2)
"""A plan made later than this after its period began says so."""


class Limit(Protocol):
    """A budget of the settings."""

    @property
    def grams(self) -> float:
        """Grams that may be spent in one period."""
        ...

    @property
    def period(self) -> str:
        """Day, week, month or year."""
        ...


class BudgetPlans:
    """The plans of all budgets in the settings."""

    def __init__(
        self, journal: Journal, limits: Mapping[str, Limit], timezone: str, signal: str
    ) -> None:
        """Keep what plans are made of.

        Args:
            journal: stored plans, and the history that new ones rest on.
            limits: budgets by name, as the settings have them now.
            timezone: of the site.
            signal: the accounting signal; "" for none.
        """
        self.limits = limits
        self._journal = journal
        self._timezone = timezone
        self._signal = signal

    def period(self, name: str, now: datetime) -> Period:
        """Give the running period of a budget."""
        return period_of(now, self.limits[name].period, self._timezone)

    def due(self, now: datetime, *, patient: bool = False) -> tuple[PlanRow, ...]:
        """Make the plans that are missing: a period has none, or its limit or signal has changed.

        Args:
            now: the running periods are planned.
            patient: make none while the signal has less than `WEEK` of history in `HISTORY`.

        Raises:
            JournalUnavailable: the journal does not answer.
        """
        made: list[PlanRow] = []
        if patient and self._signal and not self._has_values_older_than_a_week(now):
            return ()
        for name, limit in sorted(self.limits.items()):
            period, newest = self.period(name, now), self.newest(name, now)
            if newest is None:
                late = now - period.start > PROMPT
                why = f"made late, at {now:%Y-%m-%d %H:%M} UTC" if late else "made at the start"
            elif newest.curve.limit_ug != limit_ug(limit):
                before_g = newest.curve.limit_ug / UG
                why = f"the limit of {before_g:.12g} g became one of {limit.grams:.12g} g"
            elif newest.signal and self._signal and newest.signal != self._signal:
                why = f"the accounting signal was changed from {newest.signal} to {self._signal}"
            else:
                continue
            made.append(self.fresh(name, now, why))
        return tuple(made)

    def _has_values_older_than_a_week(self, now: datetime) -> bool:
        signal = Signal.parse(self._signal)
        return bool(self._journal.carbon.observed(signal, now - HISTORY, now - WEEK))

    def newest(self, name: str, now: datetime) -> PlanRow | None:
        """Give the newest plan of a budget's running period; None while there is none."""
        period = self.period(name, now)
        found = [
            each
            for each in self._journal.budgets.plans(name, period.start)
            if (each.curve.start, each.curve.end) == (period.start, period.end)
        ]
        return found[-1] if found else None

    def fresh(self, name: str, now: datetime, why: str) -> PlanRow:
        """Plan a whole period from what was known when it began."""
        period = self.period(name, now)
        intensity, power, rests_on = self._expected(name, period.start)
        limit = limit_ug(self.limits[name])
        curve = spread(period.start, period.end, limit, intensity=intensity, power=power)
        return self._row(name, period, now, curve, f"{why}; {rests_on}")

    def _row(self, name: str, period: Period, now: datetime, curve: Curve, why: str) -> PlanRow:
        return PlanRow(
            name=name, period=period.name, made_at=now, curve=curve, why=why, signal=self._signal
        )

    def anew(self, name: str, now: datetime, who: str) -> PlanRow:
        """Plan again in the middle of a period: the spent grams stay, the rest is spread again.

        Args:
            name: of the budget.
            now: hours before it take what was spent in them.
            who: asked for it.

        Raises:
            FixInput: nothing is left to plan with.
        """
        period, limit = self.period(name, now), limit_ug(self.limits[name])
        runs = runs_of(self._journal.runs.all(now), name, period.start)
        spent = spent_by_signal(self._journal, runs, period.start, now).get(self._signal, ())
        spent_ug = sum(each.carbon_ug for each in spent)
        if spent_ug >= limit:
            raise FixInput(
                f"budget {name}: {grams(spent_ug / UG)} of {grams(limit / UG)} are spent, so "
                f"nothing is left to plan with; raise budget.{name}.grams and reload"
            )
        intensity, power, rests_on = self._expected(name, now)
        curve = spread(
            period.start,
            period.end,
            limit,
            intensity=intensity,
            power=power,
            spent=spent,
            now=now,
        )
        why = f"made anew by {who} after {grams(spent_ug / UG)}; {rests_on}"
        return self._row(name, period, now, curve, why)

    def _expected(
        self, name: str, until: datetime
    ) -> tuple[HourProfile | None, HourProfile | None, str]:
        """Give expected intensity and power, and in words what they rest on.

        A run's power is taken as even while it trains.
        """
        since, carbon = until - HISTORY, self._journal.carbon
        known = carbon.observed(Signal.parse(self._signal), since, until) if self._signal else ()
        points = [(each.start, each.g_per_kwh) for each in known]
        watts = self._journal.by_slot.watts(since, until) if name == CLUSTER else ()
        moments = [at for at, _ in watts] or [until]
        week = max(moments) - min(moments) >= WEEK
        intensity = hour_profile(points, self._timezone)
        power = hour_profile(watts, self._timezone) if week else None
        grid = f"{HISTORY.days} days of {self._signal}" if intensity else "an even intensity"
        load = "the load of those days" if power else "an even load"
        return intensity, power, f"rests on {grid} and {load}"


def runs_of(runs: Iterable[RunRow], name: str, since: datetime) -> tuple[str, ...] | None:
    """Name the runs that a budget covers; None for the cluster: everything.

    A budget of a name covers every run of that name or id that was heard in the period, so a run
    that is started again under its name spends from the same budget.

    Args:
        runs: all runs.
        name: of the budget.
        since: when the period begins.
    """
    if name == CLUSTER:
        return None
    return tuple(
        each.run
        for each in runs
        if name in (each.name, each.run) and each.last_seen_at >= since - LATEST
    )


def spent_by_signal(
    journal: Journal, runs: Collection[str] | None, start: datetime, end: datetime
) -> dict[str, tuple[Spending, ...]]:
    """Give what runs spent in [start, end) by signal, slot by slot in time order; None: all runs.

    Joules of a run's GPUs that were booked to nobody are added to its upper bound. With all runs
    they are in the ledger already.
    """
    if runs is None:
        return journal.by_slot.spent(start, end)
    found: dict[str, dict[tuple[datetime, datetime], Spending]] = {}
    parts = [
        part
        for run in runs
        for part in (
            journal.by_slot.spent(start, end, run),
            unclaimed_spent(journal, run, start, end),
        )
    ]
    for signal, spent in (each for part in parts for each in part.items()):
        slots = found.setdefault(signal, {})
        for each in spent:
            key = (each.start, each.end)
            slots[key] = slots[key].plus(each) if key in slots else each
    return {
        signal: tuple(slot for _, slot in sorted(slots.items())) for signal, slots in found.items()
    }


def limit_ug(limit: Limit) -> int:
    """Give a limit in whole micrograms."""
    return round(limit.grams * UG)
