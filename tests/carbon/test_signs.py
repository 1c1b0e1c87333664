"""What people and Prometheus are told of the grid signals: lines, sentences, metrics, alerts."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.builders.carbon import intensities, slots
from tests.daemon.clocks import T0, SteppedClock
from wattmesh.controller.carbon_views import CarbonLine
from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.journal.carbon.forecasts import PROFILE, Forecast
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts, Signals
from wattmesh.controller.metrics.figures import FigureReader
from wattmesh.controller.metrics.signals import carbon_metrics
from wattmesh.controller.process.loops import Loop
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.signals.lines import carbon_line, forecast_view, skill_lines
from wattmesh.controller.status.status import last_known
from wattmesh.controller.status.trouble import FIRST_ANSWER_S, troubles
from wattmesh.policies.decision import Rung
from wattmesh.policies.forecast.skill import ForecastOutcome, ForecastSource, Skill
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.readings import Quality

RULES = Path("integrations/prometheus/rules/carbon.yml")
SIGNAL = Signal(provider="neso", zone="GB")
FACTS = SignalFacts(signal=SIGNAL, interval_s=1800.0, stale_after_s=72 * 3600.0)
HALF_HOUR = timedelta(minutes=30)


@pytest.fixture
def journal(sqlite_journal: Journal) -> Journal:
    """A journal with a running half hour, a profile with a band, and a measured skill."""
    opened = sqlite_journal
    opened.carbon.store(intensities(SIGNAL, [212.0], T0, HALF_HOUR, quality=Quality.PROVISIONAL))
    opened.forecasts.store(
        Forecast(
            signal=SIGNAL,
            rung=Rung.PROFILE,
            source=PROFILE,
            issued_at=T0 - HALF_HOUR,
            fetched_at=T0,
            model="anchored profile",
            slots=slots([200.0 + n for n in range(8)], T0, HALF_HOUR, below=10.0, above=10.0),
        )
    )
    outcome = ForecastOutcome(
        source=ForecastSource.PROFILE,
        lead_h=1.0,
        expected_g_per_kwh=110.0,
        observed_g_per_kwh=100.0,
        last_g_per_kwh=120.0,
        day_g_per_kwh=140.0,
    )
    opened.forecasts.keep_skill(SIGNAL, Skill().after([outcome], at=T0).to_json(), T0)
    opened.carbon.fetched(SIGNAL, T0, ok=True)
    return opened


@pytest.fixture
def loop_facts() -> LoopFacts:
    """What a daemon knows that decides and accounts on one signal."""
    clock = SteppedClock()
    made = LoopFacts(clock=clock.clock, settings=Settings(), started_s=0.0)
    made.signals = Signals(decision=FACTS, accounting=FACTS)
    loop = Loop("cycle", 5.0, lambda: None, clock.clock)
    loop.turn()
    made.loops["cycle"] = lambda: loop.state
    made.breakers = {str(SIGNAL): lambda: "open"}
    return made


def samples(
    journal: Journal, loop_facts: LoopFacts
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Give every sample of the signals' metrics."""
    found = carbon_metrics(loop_facts, FigureReader(journal, loop_facts).read())
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in found
        for each in family.samples
    }


def value(
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float], name: str, **labels: str
) -> float:
    """Give the one sample with these labels."""
    wanted = {("signal", str(SIGNAL)), *labels.items()}
    (one,) = [each for (n, given), each in found.items() if n == name and wanted <= set(given)]
    return one


def test_the_forecast_is_shown_with_its_band_its_source_and_its_skill(journal: Journal) -> None:
    """What the cycle decides on, and how far it was off lately."""
    view = forecast_view(journal, FACTS, T0)
    assert (view.rung, view.source, view.model) == ("profile", "profile", "anchored profile")
    assert view.sentence == (
        "Decisions rest on a profile of its last days (the provider offers no forecast, so a "
        "profile of its last days stands in)."
    )
    first, second = view.slots[:2]
    assert (first.g_per_kwh, first.quality, first.low_g_per_kwh) == (212.0, "provisional", None)
    assert (second.g_per_kwh, second.quality) == (201.0, "forecast")
    assert (second.low_g_per_kwh, second.high_g_per_kwh) == (191.0, 211.0)
    (skill,) = view.skill
    assert (skill.source, skill.mae_g_per_kwh, skill.persistence_mae_g_per_kwh) == (
        "profile",
        10.0,
        40.0,
    )
    assert skill.last_mae_g_per_kwh == 20.0


def test_without_a_signal_the_forecast_says_what_to_do(journal: Journal) -> None:
    """No settings: nothing is made up."""
    view = forecast_view(journal, None, T0)
    assert (view.rung, view.slots) == ("none", ())
    assert "[carbon.accounting]" in view.sentence
    assert skill_lines("") == ()


def test_the_metrics_tell_rung_age_breaker_and_skill(
    journal: Journal, loop_facts: LoopFacts
) -> None:
    """Exactly one rung is 1; the ages are those of the forecast and of the answer."""
    found = samples(journal, loop_facts)
    rungs = {
        rung: value(found, "wattmesh_grid_signal_rung", rung=rung)
        for rung in ("issued", "profile", "static", "none")
    }
    assert rungs == {"issued": 0.0, "profile": 1.0, "static": 0.0, "none": 0.0}
    assert value(found, "wattmesh_grid_forecast_age_seconds") == 1800.0
    assert value(found, "wattmesh_grid_poll_state", state="ok") == 1.0
    assert value(found, "wattmesh_grid_breaker_state", state="open") == 1.0
    assert value(found, "wattmesh_grid_breaker_state", state="closed") == 0.0
    error = "wattmesh_grid_forecast_error_grams_per_kilowatt_hour"
    assert value(found, error, source="profile", lead_hours="1") == 10.0


def unknown(rules: str, found: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> set[str]:
    """Name what alerts ask for and nobody exports: metrics, and label values."""
    expressions = re.findall(r"expr: (?:>-\n)?((?:.+\n(?: {10}.+\n)*))", rules)
    assert len(expressions) == rules.count("- alert:")
    names = {name for name, _ in found}
    asked = set(re.findall(r"wattmesh_\w+", " ".join(expressions)))
    labels = set(re.findall(r'(\w+)="(\w+)"', " ".join(expressions)))
    exported = {label for _, given in found for label in given}
    exported |= {("source", each.value) for each in ForecastSource}
    return (asked - names) | {f"{name}={word}" for name, word in labels - exported}


def test_alerts_ask_only_for_what_is_exported(journal: Journal, loop_facts: LoopFacts) -> None:
    """A rule on a metric that nobody exports never fires; so does one on a label's wrong word."""
    rules, found = RULES.read_text(), samples(journal, loop_facts)
    assert unknown(rules, found) == set()
    # The sabotaged twins.
    assert unknown(rules.replace("_poll_state", "_pol_state"), found)
    assert unknown(rules.replace('state="refused"', 'state="denied"'), found)


def line(**changes: object) -> CarbonLine:
    """A signal's line on which all is well."""
    facts: dict[str, object] = {
        "signal": str(SIGNAL),
        "provider": "neso",
        "zone": "GB",
        "kind": "average",
        "factor": "direct",
        "g_per_kwh": 212.0,
        "quality": "provisional",
        "age_s": 60.0,
        "trouble": "",
        "rung": "issued",
        "state": "ok",
    }
    return CarbonLine(**(facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ()),
        (
            {"state": "refused", "detail": "the key was refused (401)", "trouble": ""},
            ("neso refuses to answer", "the key was refused (401)", "Decisions go on"),
        ),
        (
            {"state": "failed", "trouble": "neso has not answered yet.", "rung": "none"},
            ("neso has not answered yet", "Every run holds until the signal is back"),
        ),
        (
            {"state": "failed", "age_s": 3 * 3600.0, "detail": "HTTP 503"},
            ("neso has not answered for 3.0 h (HTTP 503)", "Decisions go on"),
        ),
        ({"state": "failed", "age_s": 300.0, "detail": "HTTP 503"}, ()),
        ({"rung": "static", "trouble": "static: 300 g/kWh is a static number."}, ()),
        (
            {"state": "", "trouble": "neso has not answered yet.", "rung": "none"},
            ("neso has not answered yet",),
        ),
    ],
)
def test_status_says_what_a_signal_needs(
    loop_facts: LoopFacts, changes: dict[str, object], words: tuple[str, ...]
) -> None:
    """A sentence where a person must act, with what goes on meanwhile; none where nobody must."""
    loop_facts.started_s = loop_facts.clock.monotonic() - FIRST_ANSWER_S
    view = replace(last_known(loop_facts, None), carbon=line(**changes))
    said = [each for each in troubles(view, loop_facts) if "neso" in each or "static" in each]
    assert len(said) == bool(words)
    for word in words:
        assert word in said[0]


def test_a_signal_that_was_never_heard_is_waited_for_at_the_start(loop_facts: LoopFacts) -> None:
    """A daemon on its first day is not red in its first seconds; a refusal is told at once."""
    loop_facts.started_s = loop_facts.clock.monotonic() - FIRST_ANSWER_S + 1.0
    unheard = {"trouble": "neso has not answered yet.", "rung": "none"}
    for state, told in (("", False), ("refused", True), ("failed", True)):
        view = replace(last_known(loop_facts, None), carbon=line(**unheard, state=state))
        assert any("neso" in each for each in troubles(view, loop_facts)) == told, state


def test_a_signal_that_is_only_booked_with_needs_no_forecast(journal: Journal) -> None:
    """Without forecasts and history it is no trouble for the accounts, but it is for decisions."""
    other = replace(FACTS, signal=replace(SIGNAL, provider="eia930"))
    journal.carbon.fetched(other.signal, T0, ok=True)
    decides = carbon_line(journal, other, T0)
    books = carbon_line(journal, other, T0, decides=False)
    assert decides is not None
    assert books is not None
    assert (bool(decides.trouble), books.trouble) == (True, "")
