"""Our own forecast of a signal, made after each poll from the journal alone.

The stored history, the provider's newest forecast and the measured skill of both become one issue
(policies/forecast/predict.py), so that decisions have a forecast where a provider offers none or
has stopped. It is made here and not in the control cycle, which only reads issues.

Invariant: only measured or estimated values go in; an issue is dated by the data it is made of.
"""

from datetime import UTC, datetime, timedelta

from wattmesh.controller.journal.carbon.forecasts import BLEND, PROFILE, Forecast
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.forecast_parts import earlier, model_of, parts_of
from wattmesh.controller.signals.history import SeriesHistory, profile_slots
from wattmesh.controller.signals.past import KnownPast
from wattmesh.policies.decision import Rung
from wattmesh.policies.forecast.climatology import climatology_of
from wattmesh.policies.forecast.predict import IssuedForecast, Lessons, predict, scored, teach
from wattmesh.policies.forecast.series import Observed
from wattmesh.policies.forecast.skill import Skill
from wattmesh.policies.ladder import DAY_S, OLDEST
from wattmesh.telemetry.carbon import Series, Signal

HISTORY = timedelta(days=60)
REACH = timedelta(hours=72)
"""How far ahead we forecast, and so how long it takes until all of a forecast is known."""

HOUR = timedelta(hours=1)
AGAIN = timedelta(days=1)
"""How long the lessons learned from the history are used."""


class NoForecaster:
    """The null object for signals without decisions: fallbacks, and signals of reports."""

    def turn(self, now: datetime) -> int:
        """Make nothing."""
        return 0


class Forecaster:
    """Forecasts one signal."""

    def __init__(self, journal: Journal, signal: Signal, series: Series) -> None:
        """Keep the journal, the signal and its intervals."""
        self._journal = journal
        self._signal = signal
        self._series = series
        self._scale = series.day_s / DAY_S
        self._past = KnownPast(journal, signal, series, HISTORY * self._scale)
        self._made_of: tuple[datetime, int, datetime] | None = None
        self._lessons: Lessons | None = None
        self._taught_at = datetime.min.replace(tzinfo=UTC)

    def turn(self, now: datetime) -> int:
        """Make a new issue if its inputs have changed; count the issues stored.

        Raises:
            JournalUnavailable: nothing was read or stored; the next poll tries again.
        """
        if not self._series.observed:
            return 0
        history = self._past.until(now)
        if history is None or now - history.end > OLDEST[Rung.PROFILE] * self._scale:
            return 0
        issue = self._issue(now)
        passed = (now - history.end) // (HOUR * self._scale) * (HOUR * self._scale)
        made_of = (history.end, issue.id if issue else 0, history.end + passed)
        if made_of == self._made_of:
            return 0
        observed = self._observed(history)
        if observed is not None:
            self._keep_usual(observed)
            skill = self._skill(observed, now)
            forecast = self._predicted(observed, issue, skill, now)
        else:
            forecast = self._profile(history, issue, now)
        stored = self._journal.forecasts.store(forecast) if forecast is not None else False
        self._made_of = made_of
        return int(stored)

    def preview(self, now: datetime) -> Forecast | None:
        """Make an issue of a signal that no decision uses, for people to look at; store nothing.

        Raises:
            JournalUnavailable: the journal does not answer.
        """
        history, issue = self._past.until(now), self._issue(now)
        if history is None or now - history.end > OLDEST[Rung.PROFILE] * self._scale:
            return issue
        observed = self._observed(history)
        if observed is None:
            return issue or self._profile(history, None, now)
        return self._predicted(observed, issue, self._held_skill(), now)

    def _issue(self, now: datetime) -> Forecast | None:
        """Give the provider's newest forecast while it is fresh enough to decide on."""
        for each in self._journal.forecasts.newest(self._signal, now):
            young = now - each.issued_at <= OLDEST[Rung.ISSUED] * self._scale
            if each.source == self._signal.provider and young and each.slots[-1].end > now:
                return each
        return None

    def _observed(self, history: SeriesHistory) -> Observed | None:
        """Give the history as forecasts need it; None where that is impossible.

        The hours of a recording that plays compressed are not real hours, and intervals that do not
        divide an hour give no hourly values.
        """
        if self._scale != 1.0:
            return None
        try:
            return Observed(
                start=history.start, interval_s=self._series.interval_s, values=history.values
            )
        except ValueError:
            return None

    def _predicted(
        self, observed: Observed, issue: Forecast | None, skill: Skill, now: datetime
    ) -> Forecast | None:
        issued = IssuedForecast(slots=issue.slots) if issue else None
        if not timedelta(0) <= now - self._taught_at < AGAIN:
            # Lessons from two months change little in a day, and take a while to compute.
            self._lessons, self._taught_at = teach(observed), now
        predicted = predict(
            observed,
            now=now,
            hours=REACH / HOUR,
            issued=issued,
            skill=skill,
            lessons=self._lessons,
        )
        if not predicted.slots:
            return None
        return Forecast(
            signal=self._signal,
            rung=Rung.ISSUED if issue else Rung.PROFILE,
            source=BLEND if issue else PROFILE,
            issued_at=issue.issued_at if issue else observed.end,
            fetched_at=now,
            model=model_of(predicted),
            slots=predicted.slots,
            parts=parts_of(predicted),
        )

    def _keep_usual(self, observed: Observed) -> None:
        """Store the usual day, into which plans fade beyond the forecast."""
        usual = climatology_of(observed)
        if usual is not None:
            self._journal.forecasts.keep_usual(self._signal, usual)

    def _skill(self, observed: Observed, now: datetime) -> Skill:
        """Score our forecasts of the hours that became known since, and store the skill."""
        store, skill = self._journal.forecasts, self._held_skill()
        if skill.at is not None and observed.end <= skill.at:
            return skill
        made = store.made(self._signal, now - REACH - (now - observed.end))
        skill = scored(skill, earlier(made), observed)
        store.keep_skill(self._signal, skill.to_json(), now)
        return skill

    def _held_skill(self) -> Skill:
        held = self._journal.forecasts.skill(self._signal)
        return Skill.from_json(held) if held else Skill()

    def _profile(
        self, history: SeriesHistory, issue: Forecast | None, now: datetime
    ) -> Forecast | None:
        """Make the plain profile of the history; None where the provider has a forecast."""
        if issue is not None:
            return None
        slots = profile_slots(history, self._series, now, REACH * self._scale)
        return Forecast(
            signal=self._signal,
            rung=Rung.PROFILE,
            source=PROFILE,
            issued_at=history.end,
            fetched_at=now,
            model="anchored profile",
            slots=slots,
        )
