"""One number for every hour: always the same, never called measured, and no forecast."""

from datetime import UTC, datetime, timedelta

import pytest

from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.lines import carbon_line
from wattmesh.controller.signals.poller import Poller
from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.static import Static
from wattmesh.telemetry.carbon import Provider, Signal
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
HOUR = timedelta(hours=1)
SIGNAL = Signal(provider="static", zone="site", factor="lifecycle", gas="CO2eq")


def test_every_hour_has_the_number_and_says_static() -> None:
    """The hours that begin in the span, the coming one among them, each with the number."""
    source: Provider = Static(signal=SIGNAL, g_per_kwh=250.0)
    points = source.history(NOON - 3 * HOUR, NOW + 9 * HOUR, now=NOW).points
    assert [point.start for point in points] == [NOON - i * HOUR for i in (3, 2, 1, 0, -1)]
    assert {(p.g_per_kwh, p.quality, p.signal) for p in points} == {(250.0, Quality.STATIC, SIGNAL)}
    assert source.latest(NOW).points == points[-2:-1]


@pytest.mark.parametrize("minute", range(0, 60, 7))
def test_no_hour_begins_unknown(journal: Journal, minute: int) -> None:
    """From whichever minute the polls count, and though each comes a quarter of an hour late."""
    source = Static(signal=SIGNAL, g_per_kwh=250.0)
    facts = SignalFacts(signal=SIGNAL, interval_s=3600.0, stale_after_s=86_400.0)
    poller = Poller(source, journal)
    begun, late = NOON + timedelta(minutes=minute), timedelta(minutes=15)
    due = begun
    for after in range(240):
        now = begun + timedelta(minutes=after)
        if now == begun or now >= due + late:
            poller.poll(now)
            due += timedelta(seconds=source.series.cadence_s)
        line = carbon_line(journal, facts, now)
        assert line is not None
        assert (line.rung, line.g_per_kwh) == ("static", 250.0), now


def test_asked_again_it_says_the_same() -> None:
    """Only the time of asking differs, so that a journal stores an hour once."""
    source = Static(signal=SIGNAL, g_per_kwh=250.0)
    first = source.history(NOON - HOUR, NOW, now=NOW).points
    again = source.history(NOON - HOUR, NOW, now=NOW + HOUR).points
    assert [(p.start, p.issued_at) for p in first] == [(p.start, p.issued_at) for p in again]


def test_a_number_foresees_nothing() -> None:
    """There is no forecast, so that no decision follows it."""
    source = Static(signal=SIGNAL, g_per_kwh=250.0)
    assert source.forecast(48, now=NOW).points == ()
    assert source.series.forecast_s == 0
    assert not source.capabilities(NOW).forecast


def test_a_day_on_which_clocks_change_has_24_hours() -> None:
    """Hours are of UTC."""
    day = datetime(2026, 10, 25, tzinfo=UTC)
    points = Static(signal=SIGNAL, g_per_kwh=1.0).history(day, day + 24 * HOUR, now=NOW).points
    assert [point.start for point in points] == [day + i * HOUR for i in range(24)]


@pytest.mark.parametrize("value", [0.0, -1.0, 2001.0, float("nan")])
def test_what_no_grid_has_is_refused(value: float) -> None:
    """A number that cannot be an intensity is refused when it is set, not when it is used."""
    with pytest.raises(InputInvalid, match="g_per_kwh is"):
        Static(signal=SIGNAL, g_per_kwh=value)
