"""Our own forecast of a signal, made after each poll from the journal alone.

The stored history, the provider's newest forecast, what the weather makes of the hours ahead where
exogenous series are known, and the measured skill of each become one issue
(policies/forecast/predict.py), so that decisions have a forecast where a provider offers none or
has stopped. It is made here and not in the control cycle, which only reads issues.

Invariant: only measured or estimated values go in; an issue is dated by the data it is made of.
Where weather is in it, it counts as issued; without, as a profile, and says why.
"""

from datetime import UTC, datetime, timedelta

from wattmesh.controller.journal.carbon.forecasts import BLEND, PROFILE, Forecast
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.forecast_parts import earlier, model_of, parts_of
from wattmesh.controller.signals.history import SeriesHistory, profile_slots
from wattmesh.controller.signals.past import KnownPast
from wattmesh.controller.signals.weather import NoWeather, Weather, WeatherOutlook, hourly
from wattmesh.policies.decision import Rung
from wattmesh.policies.forecast.climatology import climatology_of
from wattmesh.policies.forecast.predict import (
    IssuedForecast,
    Lessons,
    PredictedIntensity,
    predict,
    scored,
    teach,
)
from wattmesh.policies.forecast.series import Observed
from wattmesh.policies.forecast.skill import ForecastSource, Skill
from wattmesh.policies.ladder import DAY_S, OLDEST
from wattmesh.telemetry.carbon import Series, Signal

HISTORY = timedelta(days=60)
YEAR = timedelta(days=365)
"""What is learned from where exogenous series are known: each season."""
SHORT = timedelta(days=120)
"""The same of series finer than half an hour, whose year would fill the daemon's memory."""
FINE_S = 1800.0
REACH = timedelta(hours=72)
"""How far ahead we forecast, and so how long it takes until all of a forecast is known."""

HALF = 0.5
MOST_MODEL = 200
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

    def __init__(
        self,
        journal: Journal,
        signal: Signal,
        series: Series,
        weather: Weather | NoWeather | None = None,
    ) -> None:
        """Keep the journal, the signal and its intervals, and what the weather makes of it."""
        self._journal = journal
        self._signal = signal
        self._series = series
        self._weather = weather or NoWeather()
        self._scale = series.day_s / DAY_S
        length = history_length(series) if self._weather.used else HISTORY
        self._past = KnownPast(journal, signal, series, length * self._scale)
        self._made_of: tuple[object, ...] | None = None
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
        exogenous = self._journal.exogenous.newest_id() if self._weather.used else 0
        made_of = (history.end, issue.id if issue else 0, history.end + passed, exogenous)
        if made_of == self._made_of:
            return 0
        observed = self._observed(history)
        if observed is not None:
            outlook = self._weather.outlook(observed, now)
            observed = _recent(observed)
            self._keep_usual(observed)
            skill = self._skill(observed, now)
            forecast = self._predicted(observed, issue, skill, now, outlook)
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
        return self._predicted(_recent(observed), issue, self._held_skill(), now, WeatherOutlook())

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
            observed = Observed(
                start=history.start, interval_s=self._series.interval_s, values=history.values
            )
        except ValueError:
            return None
        if not self._weather.used:
            return observed
        whole = hourly(observed)
        return whole if whole.values else None

    def _predicted(
        self,
        observed: Observed,
        issue: Forecast | None,
        skill: Skill,
        now: datetime,
        outlook: WeatherOutlook,
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
            exogenous=outlook.told or None,
        )
        if not predicted.slots:
            return None
        known = issue is not None or _rests_on_weather(predicted, outlook)
        # One source with weather and without: else its last issue would outlive the weather.
        blend = known or self._weather.used
        why = f" (without wind, sun and weather: {outlook.trouble})" if outlook.trouble else ""
        return Forecast(
            signal=self._signal,
            rung=Rung.ISSUED if known else Rung.PROFILE,
            source=BLEND if blend else PROFILE,
            issued_at=issue.issued_at if issue else observed.end,
            fetched_at=now,
            model=f"{model_of(predicted)}{why}"[:MOST_MODEL],
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


def history_length(series: Series) -> timedelta:
    """How much of the past is learned from together with exogenous series."""
    return YEAR if series.interval_s >= FINE_S else SHORT


def _recent(observed: Observed) -> Observed:
    """Leave out what is older than `HISTORY`: our forecast from the past alone needs no more."""
    step = timedelta(seconds=observed.interval_s)
    skipped = max(0, len(observed.values) - HISTORY // step)
    return Observed(
        start=observed.start + skipped * step,
        interval_s=observed.interval_s,
        values=observed.values[skipped:],
    )


def _rests_on_weather(predicted: PredictedIntensity, outlook: WeatherOutlook) -> bool:
    """Say whether the first slots that can rest on the weather mostly do."""
    shares = [each.get(ForecastSource.EXOGENOUS, 0.0) for each in predicted.made_of]
    return bool(outlook.told) and max(shares[: outlook.by_weather], default=0.0) >= HALF
