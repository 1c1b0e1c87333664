"""Exogenous series in the settings and in a whole daemon: mistakes, polls, screens and metrics."""

from pathlib import Path

import pytest

from tests.daemon.clocks import SteppedClock
from tests.daemon.test_wiring import Start, call, clock, start  # noqa: F401 (fixtures)
from tests.daemon.waiting import wait_for
from tests.daemon.whole.test_life import CARBON
from wattmesh.controller.settings.read import parse
from wattmesh.errors import SettingsInvalid
from wattmesh.integrations.carbon.grid_server import GridServer

ETC = Path("/etc/wattmesh/wattmesh.toml")
HOME = '[carbon.accounting]\nprovider = "neso"\nzone = "GB"\n'
PLACE = "{ latitude = 54.3, longitude = 9.7 }"


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        ('provider = "entsoe"\nzone = "DE"', "token_file", "needs the file with the token"),
        ('provider = "entsoe"\nzone = "DE"\ntoken_file = "/none"', "token_file", "cannot be read"),
        ('provider = "open_meteo"\nzone = "DE"', "places", "from 1 to 50 can be asked"),
        (f'provider = "entsoe"\nzone = "DE"\nplaces = [{PLACE}]', "places", "only read when"),
        (f'provider = "open_meteo"\nzone = "a:b"\nplaces = [{PLACE}]', "zone", "without ':'"),
        (
            f'provider = "open_meteo"\nzone = "a"\nplaces = [{PLACE}]\nbase_url = "ftp://x"',
            "base_url",
            "ftp",
        ),
        ('provider = "eia930"\nzone = "PJM"', "token_file", "needs the file with the token"),
        ('provider = "eia930"\nzone = "PJM"\nlabel = "middle"', "label", "ending"),
        ('provider = "neso"\nzone = "FR"', "zone", "it serves GB"),
        ('provider = "neso"\nzone = "GB"\ntoken_file = "/x"', "token_file", '"entsoe" or "eia930"'),
        ('provider = "neso"\nzone = "GB"\nlabel = "ending"', "label", 'provider = "eia930"'),
        (
            'provider = "gfs"\nzone = "DE"',
            "provider",
            "not one of entsoe, eia930, neso, open_meteo",
        ),
    ],
)
def test_mistakes_name_their_key_and_what_is_wrong(table: str, key: str, words: str) -> None:
    """Before any request is made."""
    with pytest.raises(SettingsInvalid) as caught:
        parse(f"{HOME}[[carbon.exogenous]]\n{table}\n", where=ETC)
    assert words in dict(caught.value.mistakes)[f"carbon.exogenous[0].{key}"]


def test_a_provider_is_named_once_and_sound_ones_are_taken(tmp_path: Path) -> None:
    """The twin without a mistake; two of one zone are one too many."""
    token = tmp_path / "token"
    token.write_text("entsoe-token-0123456789")
    token.chmod(0o600)
    one = f'[[carbon.exogenous]]\nprovider = "entsoe"\nzone = "DE"\ntoken_file = "{token}"\n'
    other = f'[[carbon.exogenous]]\nprovider = "open_meteo"\nzone = "DE"\nplaces = [{PLACE}]\n'
    settings = parse(HOME + one + other, where=ETC)
    assert settings.carbon is not None
    assert [each.provider for each in settings.carbon.exogenous] == ["entsoe", "open_meteo"]
    table = f'[[carbon.exogenous]]\nprovider = "eia930"\nzone = "US48"\ntoken_file = "{token}"\n'
    with pytest.raises(SettingsInvalid) as caught:
        parse(HOME + table, where=ETC)
    assert "name an authority" in dict(caught.value.mistakes)["carbon.exogenous[0].zone"]
    with pytest.raises(SettingsInvalid, match="named twice"):
        parse(HOME + one + one, where=ETC)


def test_a_daemon_polls_what_is_named_and_says_when_it_is_silent(
    start: Start,  # noqa: F811
    clock: SteppedClock,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Stored beside the decision signal, shown on screens; a refusal is a trouble."""
    token = tmp_path / "eia.key"
    token.write_text("eia-key-0123456789-of-24")
    token.chmod(0o600)
    with GridServer(clock=clock.clock.now).serving() as grid:
        base = grid.base("open_meteo")
        more = (
            f'{CARBON}\n[[carbon.exogenous]]\nprovider = "open_meteo"\nzone = "home"\n'
            f'base_url = "{base}"\nplaces = [{PLACE}]\n'
            '[[carbon.exogenous]]\nprovider = "neso"\nzone = "GB"\n'
            f'base_url = "{grid.base("neso")}"\n'
            '[[carbon.exogenous]]\nprovider = "eia930"\nzone = "PJM"\n'
            f'base_url = "{grid.base("eia930")}"\ntoken_file = "{token}"\n'
        )
        parts = start(more=more)
        parts.start()
        wait_for(
            lambda: (
                {each["state"] for each in call(parts, "GET", "/v1/carbon/forecast")["exogenous"]}
                == {"ok"}
            ),
            "a first poll of the weather, the wind and the load",
        )
        lines = call(parts, "GET", "/v1/carbon/now")["carbon"]["exogenous"]
        assert [each["series"] for each in lines] == ["open_meteo:home", "neso:GB", "eia930:PJM"]
        assert "eia-key" not in str(lines)
        wait_for(
            lambda: any("exogenous:open_meteo" in each.job for each in parts.jobs.totals()),
            "the end of that poll",
        )
        series = parts.loop_facts.signals.exogenous[0]

        def refusal_is_told() -> bool:
            """Note a refusal and look; a poll that ends between the two is answered again."""
            parts.journal.exogenous.fetched(
                series, parts.loop_facts.clock.now(), ok=False, detail="elsewhere", refused=True
            )
            view = call(parts, "GET", "/v1/status")
            return any("open_meteo:home refuses to answer" in each for each in view["trouble"])

        wait_for(refusal_is_told, "the refusal among the troubles")
