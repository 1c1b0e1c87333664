"""Which signal may be used for what: the settings of roles, and that each series is polled once."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.daemon.test_settings import mistakes
from wattmesh.controller.settings.read import parse
from wattmesh.controller.signals.grid import GridProviders, grid

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ACCOUNTING = '[carbon.accounting]\nprovider = "neso"\nzone = "GB"\n'


def static(
    kind: str = "average", factor: str = "direct", gas: str = "CO2", zone: str = "GB"
) -> str:
    """Declare a number for a zone."""
    return (
        f'provider = "static"\nzone = "{zone}"\ng_per_kwh = 200.0\n'
        f'kind = "{kind}"\nfactor = "{factor}"\ngas = "{gas}"\n'
    )


def fallback(section: str, scale: str = "scale = 1.08\n") -> str:
    """Declare a fallback."""
    return f"{ACCOUNTING}[[carbon.accounting_fallback]]\n{section}{scale}"


def test_a_fallback_of_the_same_kind_is_taken() -> None:
    """The twin of what is refused below."""
    assert opened(fallback(static())).fallbacks


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (fallback(static(), scale=""), "carbon.accounting_fallback[0].scale", "is missing"),
        (
            fallback(static(), scale="scale = 0.0\n"),
            "carbon.accounting_fallback[0].scale",
            "above 0",
        ),
        (
            fallback(static(kind="marginal")),
            "carbon.accounting_fallback[0]",
            "one kilowatt-hour more",
        ),
        (
            fallback(static(factor="lifecycle")),
            "carbon.accounting_fallback[0]",
            "no factor makes one of the other",
        ),
        (fallback(static(gas="CO2eq")), "carbon.accounting_fallback[0]", "cannot stand in"),
        (
            fallback('provider = "neso"\nzone = "GB"\n'),
            "carbon.accounting_fallback[0]",
            "the accounting signal itself",
        ),
        (
            f'{ACCOUNTING}[[carbon.report]]\nprovider = "csv"\nzone = "GB"\n',
            "carbon.report[0].file",
            "is missing",
        ),
    ],
)
def test_what_cannot_stand_in_is_refused(text: str, key: str, words: str) -> None:
    """Each mistake under its own key, with what is wrong."""
    found = mistakes(text)
    assert list(found) == [key]
    assert words in found[key]


def opened(text: str) -> GridProviders:
    """Open what the settings name."""
    return grid(parse(text, where=Path("/etc/wattmesh/wattmesh.toml")), NOW)


def test_a_series_that_serves_two_roles_is_polled_once() -> None:
    """Accounting and decisions on one signal: one provider, one poller."""
    assert len(opened(ACCOUNTING).providers) == 1
    same = opened(ACCOUNTING + '[carbon.decision]\nprovider = "neso"\nzone = "GB"\n')
    assert same.decision is same.accounting


def test_every_role_is_polled() -> None:
    """Fallbacks and signals of reports too; the tariff knows the factor."""
    text = (
        fallback(static())
        + "[[carbon.report]]\n"
        + static(factor="lifecycle")
        + "[carbon.decision]\n"
        + static(kind="marginal", zone="GB-1")
    )
    found = opened(text)
    assert [str(each.signal) for each in found.providers] == [
        "neso:GB:average:direct:CO2",
        "static:GB-1:marginal:direct:CO2",
        "static:GB:average:direct:CO2",
        "static:GB:average:lifecycle:CO2",
    ]
    assert found.ahead == {"neso:GB:average:direct:CO2", "static:GB-1:marginal:direct:CO2"}
    assert [str(each.signal) for each in found.signals.all] == [
        "static:GB-1:marginal:direct:CO2",
        "neso:GB:average:direct:CO2",
        "static:GB:average:direct:CO2",
        "static:GB:average:lifecycle:CO2",
    ]
    assert {str(each.signal) for each in found.signals.ahead} == found.ahead
    assert found.tariff is not None
    assert [each.scale for each in found.tariff.fallbacks] == [1.08]
    assert [str(each.signal) for each in found.signals.reports] == [
        "static:GB:average:lifecycle:CO2"
    ]
    assert found.signals.decision is not None
    assert found.signals.decision.signal.kind == "marginal"


def test_without_a_signal_slots_are_half_hours() -> None:
    """Energy is booked all the same."""
    nothing = opened('mode = "observe"\n')
    assert (nothing.tariff, nothing.providers) == (None, ())
    assert nothing.slots.interval_s == 1800.0
