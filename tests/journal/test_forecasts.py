"""Forecasts in the journal: whole, unchanged, one issue at a time, on both databases."""

from dataclasses import replace
from datetime import timedelta

from tests.builders.carbon import intensities, slots
from tests.builders.runs import T0
from wattmesh.controller.journal.carbon.forecasts import BLEND, PROFILE, Forecast, issues, unbroken
from wattmesh.controller.journal.journal import Journal
from wattmesh.policies.decision import Rung
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.readings import Quality

SIGNAL = Signal(provider="neso", zone="GB")
HALF_HOUR = timedelta(minutes=30)


def made(value: float, *, hours: int = 2, shift: int = 0) -> Forecast:
    """Make an issue that says one value, with a band, issued `shift` half hours after T0."""
    start = T0 + shift * HALF_HOUR
    return Forecast(
        signal=SIGNAL,
        rung=Rung.ISSUED,
        source="neso",
        issued_at=start,
        fetched_at=start,
        model="NESO forecast",
        slots=slots([value] * (2 * hours), start, HALF_HOUR, below=10.5),
    )


def test_an_issue_is_read_as_it_was_written(journal: Journal) -> None:
    """Values to a milligram, quantiles that nobody told stay unknown."""
    forecast = replace(made(123.456), parts='{"said": {}}')
    assert journal.forecasts.store(forecast)
    (found,) = journal.forecasts.newest(SIGNAL)
    assert replace(found, id=0) == forecast
    assert journal.forecasts.get(found.id) == found
    assert journal.forecasts.get(found.id + 1) is None


def test_the_same_issue_is_stored_once_and_a_corrected_one_beside_it(journal: Journal) -> None:
    """Polls within one interval say the same; a provider may issue again at the same time."""
    assert journal.forecasts.store(made(100.0))
    assert not journal.forecasts.store(made(100.0))
    assert journal.forecasts.store(made(101.0))
    (found,) = journal.forecasts.newest(SIGNAL)
    assert found.slots[0].g_per_kwh == 101.0


def test_an_older_issue_that_comes_late_is_not_the_newest(journal: Journal) -> None:
    """By when it was issued, not by when it was heard."""
    journal.forecasts.store(made(100.0, shift=2))
    journal.forecasts.store(made(300.0, shift=0))
    (found,) = journal.forecasts.newest(SIGNAL)
    assert found.issued_at == T0 + 2 * HALF_HOUR


def test_what_is_issued_in_times_to_come_is_never_the_newest(journal: Journal) -> None:
    """Neither a year ahead by a clock that was wrong, nor because a provider says so."""
    day = timedelta(days=400)
    ahead = replace(made(300.0), issued_at=T0 + day, fetched_at=T0 + day)
    journal.forecasts.store(made(100.0))
    journal.forecasts.store(ahead)
    assert journal.forecasts.newest(SIGNAL)[0].issued_at == T0 + day
    (found,) = journal.forecasts.newest(SIGNAL, T0 + timedelta(minutes=5))
    assert found.issued_at == T0
    (point,) = intensities(SIGNAL, [100.0], T0, HALF_HOUR, quality=Quality.FORECAST)
    point = replace(point, issued_at=T0 + day)
    assert [each.issued_at for each in issues([point])] == [T0]


def test_the_newest_of_each_source_is_told(journal: Journal) -> None:
    """The provider's, the blend and the profile stand beside each other, each whole."""
    journal.forecasts.store(made(100.0))
    journal.forecasts.store(replace(made(90.0), source=BLEND))
    journal.forecasts.store(replace(made(80.0), source=PROFILE, rung=Rung.PROFILE))
    journal.forecasts.store(replace(made(1.0), signal=replace(SIGNAL, zone="FR")))
    assert {each.source for each in journal.forecasts.newest(SIGNAL)} == {"neso", BLEND, PROFILE}
    assert all(
        len({slot.g_per_kwh for slot in each.slots}) == 1
        for each in journal.forecasts.newest(SIGNAL)
    )


def test_what_was_expected_of_an_hour_is_what_its_newest_issue_said(journal: Journal) -> None:
    """Of the issues that reach over it; none beyond their end."""
    journal.forecasts.store(made(100.0))
    journal.forecasts.store(made(200.0, shift=2))
    for shift, value in ((0, 100.0), (1, 100.0), (2, 200.0), (5, 200.0)):
        found = journal.forecasts.expected(SIGNAL, T0 + shift * HALF_HOUR)
        assert found is not None
        assert found[0].g_per_kwh == value
    assert journal.forecasts.expected(SIGNAL, T0 + 6 * HALF_HOUR) is None


def test_points_of_two_issues_become_two_issues(journal: Journal) -> None:
    """One answer may hold both; a gap ends an issue, for what lies behind it is not from now on."""
    values = [100.0, 101.0, 102.0, 103.0]
    points = [
        replace(each, issued_at=T0 - (n % 2) * HALF_HOUR)
        for n, each in enumerate(
            intensities(SIGNAL, values, T0, HALF_HOUR, quality=Quality.FORECAST)
        )
    ]
    assert [len(each.slots) for each in issues(points)] == [1, 1]
    assert journal.carbon.store(points) == 2
    assert journal.carbon.observed(SIGNAL, T0, T0 + 4 * HALF_HOUR) == ()
    assert len(unbroken(made(1.0).slots)) == 4
    assert unbroken(()) == ()


def test_how_polls_went_is_kept_column_by_column(journal: Journal) -> None:
    """A failure does not forget the success before it, nor since when decisions rest on what."""
    journal.carbon.fetched(SIGNAL, T0, ok=True)
    journal.carbon.filled(SIGNAL, deep_at=T0, since=T0 - HALF_HOUR)
    journal.carbon.stands_on(SIGNAL, "issued", T0)
    later = T0 + HALF_HOUR
    journal.carbon.fetched(SIGNAL, later, ok=False, detail="HTTP 401", refused=True)
    row = journal.carbon.last_fetch(SIGNAL)
    assert row is not None
    assert (row.ok_at, row.failed_at, row.state, row.detail) == (T0, later, "refused", "HTTP 401")
    assert (row.deep_at, row.filled_from, row.rung, row.rung_at) == (
        T0,
        T0 - HALF_HOUR,
        "issued",
        T0,
    )


def test_skill_is_kept_and_replaced(journal: Journal) -> None:
    """One text per signal."""
    assert journal.forecasts.skill(SIGNAL) == ""
    journal.forecasts.keep_skill(SIGNAL, "{}", T0)
    journal.forecasts.keep_skill(SIGNAL, '{"at": null}', T0)
    assert journal.forecasts.skill(SIGNAL) == '{"at": null}'
