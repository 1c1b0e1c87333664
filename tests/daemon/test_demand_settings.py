"""`[demand_response]`: off by default; every mistake is one sentence."""

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.daemon.test_settings import ETC, mistakes
from wattmesh.controller.settings.read import parse
from wattmesh.policies.powercap.triggers import CapOrigin

SIGNAL = '[carbon.accounting]\nprovider = "neso"\nzone = "GB"\n'
CARBON = "[demand_response.carbon]\n"
PRICE = "[demand_response.price]\n"


def priced(folder: Path, *zones: str) -> str:
    """Tables of providers with prices."""
    token = folder / "token"
    token.write_text("entsoe-token-0123456789", "utf-8")
    token.chmod(0o600)
    return "".join(
        f'[[carbon.exogenous]]\nprovider = "entsoe"\nzone = "{zone}"\nprices = true\n'
        f'token_file = "{token}"\n'
        for zone in zones
    )


def test_it_is_off_by_default_and_days_are_the_sites(tmp_path: Path) -> None:
    """Where it is set, each trigger has its own limits."""
    assert parse(SIGNAL, where=ETC).demand() == ()
    text = f'{SIGNAL}{priced(tmp_path, "DE")}[site]\ntimezone = "Europe/Berlin"\n'
    text += f"{CARBON}worst_hours = 3\ncap_w = 1e5\n{PRICE}above = -5.0\ncap_share = 0.7\n"
    carbon, price = parse(text, where=ETC).demand()
    assert (carbon.trigger.origin, carbon.prices) == (CapOrigin.CARBON, "")
    assert carbon.trigger.timezone == ZoneInfo("Europe/Berlin")
    assert carbon.allow == {"estimated"}
    assert (price.trigger.origin, price.prices) == (CapOrigin.PRICE, "entsoe:DE")
    assert (price.trigger.above, price.trigger.cap_share) == (-5.0, 0.7)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (f"{CARBON}cap_w = 1e5", "carbon", "names no hours; set worst_hours, above, or both"),
        (f"{CARBON}worst_hours = 3", "carbon", "needs exactly one of cap_w and cap_share"),
        (f"{CARBON}worst_hours = 3\ncap_w = 1.0\ncap_share = 0.5", "carbon", "exactly one of"),
        (f"{CARBON}worst_hours = 24\ncap_w = 1.0", "carbon.worst_hours", "at most 23"),
        (f"{CARBON}worst_hours = 2.5\ncap_w = 1.0", "carbon.worst_hours", "whole number"),
        (f"{CARBON}above = -1.0\ncap_w = 1.0", "carbon.above", "-1.0 must be at least 0 g/kWh"),
        (f"{CARBON}above = nan\ncap_w = 1.0", "carbon.above", ""),
        (f"{CARBON}above = 1.0\ncap_w = inf", "carbon.cap_w", ""),
        (f"{CARBON}above = 1.0\ncap_w = 0.0", "carbon.cap_w", "must be above 0"),
        (f"{CARBON}above = 1.0\ncap_share = 1.5", "carbon.cap_share", "at most 1"),
        (f"{CARBON}above = 1.0\ncap_w = 1.0\nhysteresis = 1.0", "carbon.hysteresis", "below 1"),
        (
            f"{CARBON}above = 1.0\ncap_w = 1.0\nlongest_hours = 0",
            "carbon.longest_hours",
            "at least 1",
        ),
        (
            f"{CARBON}above = 1.0\ncap_w = 1.0\nnotice_s = 7200.0\nahead_hours = 2",
            "carbon.notice_s",
            "7200 must be below ahead_hours (2 h), or no hour is ever capped",
        ),
        (f'{CARBON}above = 1.0\ncap_w = 1.0\nallow = ["guesses"]', "carbon.allow[0]", "not one of"),
        (f"{PRICE}above = 1.0\ncap_w = 1.0", "price.series", "no table [[carbon.exogenous]] sets"),
        (
            f"[actuator]\nobligation_days = 0.1\n{CARBON}above = 1.0\ncap_w = 1.0",
            "carbon.longest_hours",
            "4 h is more than actuator.obligation_days (0.1), and no node would obey",
        ),
        (f"{CARBON}abov = 1.0", "carbon.abov", "did you mean demand_response.carbon.above?"),
    ],
)
def test_each_mistake_is_one_sentence(text: str, key: str, words: str) -> None:
    """With its key, and what is allowed."""
    found = mistakes(f"{SIGNAL}{text}\n")
    assert words in found[f"demand_response.{key}"]
    assert "\n" not in found[f"demand_response.{key}"]


def test_a_trigger_needs_its_signal(tmp_path: Path) -> None:
    """A decision signal, and one series of prices; two must be told apart."""
    lone = mistakes(f"{CARBON}above = 1.0\ncap_w = 1.0\n")
    assert "needs a grid signal" in lone["demand_response.carbon"]
    two = f"{SIGNAL}{priced(tmp_path, 'DE', 'FR')}{PRICE}above = 1.0\ncap_w = 1.0\n"
    assert "name one of them" in mistakes(two)["demand_response.price.series"]
    other = mistakes(f'{two}series = "entsoe:NL"\n')["demand_response.price.series"]
    assert other == '"entsoe:NL" tells no prices; allowed: entsoe:DE, entsoe:FR'
    (named,) = parse(f'{two}series = "entsoe:FR"\n', where=ETC).demand()
    assert named.prices == "entsoe:FR"


def test_prices_are_only_asked_of_who_tells_them(tmp_path: Path) -> None:
    """Open-Meteo has none."""
    text = f'{SIGNAL}[[carbon.exogenous]]\nprovider = "neso"\nzone = "GB"\nprices = true\n'
    found = mistakes(text)["carbon.exogenous[0].prices"]
    assert found == 'is only read when provider = "entsoe"'
