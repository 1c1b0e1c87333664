"""`wattmesh carbon forecast` and `providers`: screens, JSON, and what providers answer live."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.answering import answering
from tests.cli.facts import HOUR_BEGINS, forecast
from wattmesh.controller.cli.carbon import carbon, carbon_screen
from wattmesh.controller.cli.carbon.carbon_providers import NEXT
from wattmesh.controller.cli.main import main
from wattmesh.errors import SourceRefused, SourceUnavailable
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.providers import PROVIDERS

KEY = "carbon-key-0123456789"


def shown(view: dict[str, Any], hours: float = 24.0) -> str:
    """Give the screen as text."""
    return "\n".join(str(line) for line in carbon_screen.forecast(view, hours))


def test_a_forecast_shows_its_source_its_band_and_its_skill() -> None:
    """The answer first: on what it rests, the lowest and the highest hour, then the hours."""
    text = shown(forecast())
    assert text.splitlines()[0] == "neso:GB:average:direct:CO2  as issued by neso, 30 min old"
    assert "next 6 h  " in text
    assert "low 118 at Fri 18:00   high 212 at Fri 14:00" in text
    assert "Fri 18:00  Fri 19:00    118     98-148" in text
    assert "the provider    6 h  9.1 g/kWh    12 g/kWh    21 g/kWh  480 values" in text


def test_what_a_forecast_is_made_of_is_shown() -> None:
    """Ours names its parts."""
    assert "made of: 0.7 provider + 0.3 profile" in shown(
        forecast(model="0.7 provider + 0.3 profile")
    )


def test_hours_limit_what_is_shown() -> None:
    """Only slots that begin within the hours asked for are laid out."""
    text = shown(forecast(), hours=2)
    assert "Fri 15:00" in text
    assert "Fri 17:00" not in text


def test_what_is_not_known_is_a_dash() -> None:
    """No quantiles, no skill measured yet, no time of issue: nothing of it is shown as 0."""
    bare = [{**slot, "low_g_per_kwh": None, "high_g_per_kwh": None} for slot in forecast()["slots"]]
    blank = {**forecast()["skill"][0], "last_mae_g_per_kwh": None}
    text = shown(forecast(slots=bare, skill=[blank], issued_at=None))
    assert "    212          -  █" in text
    assert "g/kWh           -  480 values" in text
    assert text.splitlines()[0].endswith("as issued by neso")


@pytest.mark.parametrize(
    ("rung", "words"),
    [
        ("profile", "from stored hours"),
        ("static", "decisions hold"),
        ("none", "nothing is known"),
    ],
)
def test_a_lower_rung_says_so_first(rung: str, words: str) -> None:
    """What a forecast rests on, when it is not a fresh one, stands in the first line."""
    sentence = "neso has not answered for 26 h."
    text = shown(forecast(rung=rung, sentence=sentence, slots=[], skill=[]))
    assert words in text.splitlines()[0]
    assert text.splitlines()[1] == sentence


def test_without_a_signal_the_screen_says_so() -> None:
    """Nothing is set: one line, the API's."""
    assert shown(forecast(signal="", sentence="No signal.")) == "No signal."


def test_the_command_prints_the_screen_or_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks the daemon once and adds nothing to its JSON."""
    socket = str(tmp_path / "s")
    with answering(tmp_path / "s", {"/v1/carbon/forecast": (200, forecast())}) as server:
        assert main(["carbon", "forecast", "--hours", "3", "--socket", socket]) == 0
        assert "as issued by neso" in capsys.readouterr().out
        named = ["carbon", "forecast", "neso:GB", "--socket", socket, "--json"]
        assert main(named) == 0
    assert json.loads(capsys.readouterr().out) == forecast()
    page = "/v1/carbon/forecast"
    assert [path for _, path, _ in server.asked] == [page, f"{page}?signal=neso%3AGB"]


def test_history_names_days_where_hours_alone_would_be_ambiguous() -> None:
    """Within a day the clock is enough; beyond, each line says its day. All zero draws no bar."""

    def told(hours: int, value: float) -> list[str]:
        points = [
            {
                "start": (HOUR_BEGINS + timedelta(hours=i)).isoformat(),
                "end": (HOUR_BEGINS + timedelta(hours=i + 1)).isoformat(),
                "g_per_kwh": value,
                "quality": "measured",
            }
            for i in range(hours)
        ]
        return [str(line) for line in carbon.screen({"signal": "x", "points": points})]

    assert told(2, 200.0)[2].startswith("14:00:00  15:00:00    200  measured  ███")
    assert told(30, 200.0)[-1].startswith("21 Nov 19:00:00  21 Nov 20:00:00    200  measured  ███")
    assert told(1, 0.0)[-1].rstrip() == "14:00:00  15:00:00      0  measured"


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server that knows one key."""
    with GridServer(keys=frozenset({KEY})).serving() as server:
        yield server


def settings(folder: Path, grid: GridServer, key: str = KEY) -> Path:
    """Write settings whose signals are NESO's and EIA's, both at the server."""
    (folder / "key").write_text(key)
    (folder / "key").chmod(0o600)
    file = folder / "wattmesh.toml"
    file.write_text(
        f'[carbon.accounting]\nprovider = "neso"\nzone = "GB"\nbase_url = "{grid.base("neso")}"\n'
        f'[carbon.decision]\nprovider = "eia930"\nzone = "CISO"\nkey_file = "key"\n'
        f'base_url = "{grid.base("eia930")}"\n'
    )
    return file


def test_providers_lists_all_and_asks_nobody_without_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every provider is there with what it serves and needs; `--json` has the same."""
    monkeypatch.setattr("wattmesh.controller.cli.options.DEFAULT_CONFIG", tmp_path / "none")
    assert main(["carbon", "providers"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{name}\n" in f"\n{text}" for name in PROVIDERS)
    assert "needs   provider, zone, username, password_file" in text
    assert text.endswith("no settings are named (--config FILE): nobody was asked\n")
    assert main(["carbon", "providers", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["provider"] for each in answer["providers"]] == list(PROVIDERS)
    assert answer["asked"] == []


def test_providers_asks_the_configured_sources_with_their_keys(
    grid: GridServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each signal says what it serves and lacks with this key; who uses what is named."""
    file = settings(tmp_path, grid)
    assert main(["carbon", "providers", "--config", str(file)]) == 0
    text = capsys.readouterr().out
    assert "neso   used by carbon.accounting" in text
    assert (
        "carbon.accounting  neso:GB:average:direct:CO2  serves latest, history, forecast\n" in text
    )
    assert (
        "carbon.decision  eia930:CISO:average:direct:CO2  serves latest, history, no forecast\n"
        in text
    )
    assert KEY not in text


def test_a_refusal_is_an_answer_with_the_next_step(
    grid: GridServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong key and an outage are sentences; the other sources are told all the same."""
    file = settings(tmp_path, grid, key="another-key-987654")
    grid.fail(Fault.EMPTY, provider="neso")
    assert main(["carbon", "providers", "--config", str(file), "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)["asked"]
    assert [each["source"] for each in asked] == ["carbon.accounting", "carbon.decision"]
    assert "empty list" in asked[0]["error"]
    assert asked[0]["next"].startswith("Check zone and dates")
    assert "API_KEY" in asked[1]["error"] or "403" in asked[1]["error"]
    assert asked[1]["next"].startswith("Check what is in its key")
    assert "another-key" not in json.dumps(asked)
    assert main(["carbon", "providers", "--config", str(file)]) == 0
    assert "  refused\n" in capsys.readouterr().out


def test_no_ask_asks_nobody(
    grid: GridServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --no-ask the settings say who is used, and the network is left alone."""
    file = settings(tmp_path, grid)
    assert main(["carbon", "providers", "--config", str(file), "--no-ask"]) == 0
    assert "eia930   used by carbon.decision" in capsys.readouterr().out
    assert grid.asked == []


def test_every_way_a_provider_refuses_has_a_next_step() -> None:
    """No error of a source is left without one of its own."""
    for root in (SourceUnavailable, SourceRefused):
        for error in root.__subclasses__():
            assert any(each in NEXT for each in error.__mro__)
    assert all(words.endswith(".") for words in NEXT.values())
