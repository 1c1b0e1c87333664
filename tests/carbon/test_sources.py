"""From the settings file to a provider: what opens, and every mistake as a sentence."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.docs.blocks import block
from wattmesh.controller.settings.carbon import CarbonSourceSection
from wattmesh.controller.settings.read import parse
from wattmesh.controller.settings.web_address import address_mistake
from wattmesh.errors import InputInvalid, SettingsInvalid
from wattmesh.integrations.carbon.entsoe import FACTORS_G_PER_KWH
from wattmesh.integrations.carbon.entsoe import STORAGE as ENTSOE_STORAGE
from wattmesh.integrations.carbon.providers import PROVIDERS, readers
from wattmesh.integrations.carbon.reading.fuel_mix import DIRECT_G_PER_KWH, STORAGE
from wattmesh.integrations.carbon.sources import SourceSettings, provider, read_secret

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
SECRET = "carbon-key-0123456789"
FREE = ("provider", "zone", "stale_after_s", "scale")
"""Keys of a source that every provider reads."""


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """Give a file with a secret, readable by its owner only."""
    path = tmp_path / "key"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


def table(key: Path, provider: str, **changes: str) -> str:
    """Write a source that is right; a change replaces a line, or with "" leaves it out."""
    declared = {"kind": '"average"', "factor": '"direct"', "gas": '"CO2"'}
    lines: dict[str, dict[str, str]] = {
        "neso": {"zone": '"GB"'},
        "electricity_maps": {"zone": '"DE"', "key_file": f'"{key}"'},
        "watttime": {
            "zone": '"CAISO_NORTH"',
            "username": '"operator"',
            "password_file": f'"{key}"',
            "signal_type": '"co2_aoer"',
        },
        "eia930": {"zone": '"CISO"', "key_file": f'"{key}"'},
        "entsoe": {"zone": '"DE"', "key_file": f'"{key}"'},
        "open_electricity": {"zone": '"NSW1"', "key_file": f'"{key}"'},
        "static": {"zone": '"site"', "g_per_kwh": "250.0", **declared},
        "http_json": {
            "zone": '"site"',
            **declared,
            "http_json": '{ url = "https://grid.example/{zone}", unit = "g/kWh" }',
        },
    }
    kept = {"provider": f'"{provider}"', **lines[provider], **changes}
    return "\n".join(f"{name} = {value}" for name, value in kept.items() if value)


def mistakes(text: str) -> dict[str, str]:
    """Read settings; give their mistakes by key."""
    try:
        parse(text, where=Path("/etc/wattmesh/wattmesh.toml"))
    except SettingsInvalid as error:
        return dict(error.mistakes)
    return {}


@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("neso", "neso:GB:average:direct:CO2"),
        ("electricity_maps", "electricity_maps:DE:average:lifecycle:CO2eq"),
        ("watttime", "watttime:CAISO_NORTH:average:direct:CO2"),
        ("eia930", "eia930:CISO:average:direct:CO2"),
        ("entsoe", "entsoe:DE:average:direct:CO2"),
        ("open_electricity", "open_electricity:NSW1:average:direct:CO2eq"),
        ("static", "static:site:average:direct:CO2"),
        ("http_json", "http_json:site:average:direct:CO2"),
    ],
)
def test_every_provider_opens_from_the_file(key: Path, name: str, signal: str) -> None:
    """Each opens with what it needs, and nobody is asked for it."""
    settings = parse(
        f"[carbon.accounting]\n{table(key, name)}", where=Path("/etc/wattmesh/wattmesh.toml")
    )
    assert settings.carbon is not None
    opened = provider(settings.carbon.accounting.source(), NOW)
    assert str(opened.signal) == signal
    assert opened.series.cadence_s > 0
    assert SECRET not in f"{settings!r} {opened!r} {settings.carbon.accounting.source()!r}"


@pytest.mark.parametrize(
    ("name", "changes", "where", "words"),
    [
        ("electricity_maps", {"key_file": ""}, "key_file", "is missing: provider = "),
        ("watttime", {"username": ""}, "username", "needs the user name"),
        ("static", {"g_per_kwh": ""}, "g_per_kwh", "needs the number"),
        ("static", {"kind": ""}, "kind", "needs average or marginal"),
        ("static", {"g_per_kwh": "0.0"}, "g_per_kwh", "must be above 0"),
        ("static", {"zone": '"a:b"'}, "g_per_kwh", "is not a zone"),
        ("http_json", {"http_json": ""}, "http_json", "how to ask the service"),
        ("http_json", {"gas": ""}, "gas", "needs CO2 or CO2eq"),
        ("neso", {"zone": '"18"'}, "zone", "is not a zone of neso; it serves GB"),
        ("neso", {"g_per_kwh": "5.0"}, "g_per_kwh", 'only read when provider = "static"'),
        (
            "neso",
            {"key_file": '"/k"'},
            "key_file",
            'only read when provider = "electricity_maps" or "eia930"',
        ),
        ("electricity_maps", {"api_version": '"v2"'}, "api_version", "is not one of v4, v3"),
        ("watttime", {"signal_type": '"signal-index"'}, "signal_type", "co2_moer, co2_aoer"),
        ("eia930", {"eia930": '{ label = "middle" }'}, "eia930.label", "ending, starting"),
        ("entsoe", {"entsoe": "{ factors = { B02 = -1.0 } }"}, "entsoe", "factor of B02 is -1"),
        ("entsoe", {"zone": '"Atlantis"'}, "zone", "Atlantis"),
        ("open_electricity", {"zone": '"NZ"'}, "zone", "NEM, NSW1"),
        ("eia930", {"eia930": "{ factors = { NG = -1.0 } }"}, "eia930", "factor of NG is -1"),
        ("eia930", {"eia930": '{ factors = { NG = "x" } }'}, "eia930.factors.NG", "not a number"),
    ],
)
def test_mistakes_name_the_key_and_what_is_allowed(
    key: Path, name: str, changes: dict[str, str], where: str, words: str
) -> None:
    """One sentence per mistake, at the key that must change."""
    wrong = mistakes(f"[carbon.accounting]\n{table(key, name, **changes)}")
    assert list(wrong) == [f"carbon.accounting.{where}"]
    assert words in wrong[f"carbon.accounting.{where}"]


@pytest.mark.parametrize(
    ("json", "where", "words"),
    [
        ('unit = "percentile", url = "https://h/x"', ".unit", "a percentile has no grams"),
        ('unit = "stones", url = "https://h/x"', ".unit", "is not one of g/kWh, kg/MWh"),
        ('unit = "g/kWh", url = "https://h/{region}"', "", "{region} in"),
        ('unit = "g/kWh"', ".url", "is missing"),
        ('unit = "g/kWh", url = "grid.example"', "", "does not begin with http"),
        ('unit = "g/kWh", url = "https://h", token_header = ""', ".token_header", "one word"),
        ('unit = "g/kWh", url = "https://h", token_scheme = "a b"', ".token_scheme", "one word"),
        ('unit = "g/kWh", url = "https://h/x", interval = 5', ".interval", "interval_s"),
        ('unit = "g/kWh", url = "https://h/x", start = ""', "", "an interval needs one"),
    ],
)
def test_mistakes_about_a_service_name_the_key(
    key: Path, json: str, where: str, words: str
) -> None:
    """What cannot be asked or read is refused before anybody is asked."""
    text = table(key, "http_json", http_json=f"{{ {json} }}")
    wrong = mistakes(f"[carbon.accounting]\n{text}")
    assert list(wrong) == [f"carbon.accounting.http_json{where}"]
    assert words in wrong[f"carbon.accounting.http_json{where}"]


def test_grams_are_not_booked_with_a_marginal_signal(key: Path) -> None:
    """It is refused for accounting, with what to do, and allowed to decide on."""
    marginal = table(key, "watttime", signal_type='"co2_moer"')
    wrong = mistakes(f"[carbon.accounting]\n{marginal}")
    assert "is a marginal signal" in wrong["carbon.accounting"]
    assert "name this one in [carbon.decision]" in wrong["carbon.accounting"]
    both = f"[carbon.accounting]\n{table(key, 'neso')}\n[carbon.decision]\n{marginal}"
    assert mistakes(both) == {}


def test_grams_are_not_booked_with_forecasts(key: Path) -> None:
    """A region of NESO is never observed: refused for accounting, allowed to decide on."""
    region = table(key, "neso", zone='"13"')
    assert "has forecasts only" in mistakes(f"[carbon.accounting]\n{region}")["carbon.accounting"]
    both = f"[carbon.accounting]\n{table(key, 'neso')}\n[carbon.decision]\n{region}"
    assert mistakes(both) == {}


def with_fallback(key: Path, name: str, **changes: str) -> str:
    """Write a static accounting signal and one that stands in for it."""
    other = table(key, name, **changes)
    first = table(key, "static")
    return f"[carbon.accounting]\n{first}\n[[carbon.accounting_fallback]]\n{other}\nscale = 1.1\n"


def test_what_stands_in_must_be_of_the_same_kind_factor_and_gas(key: Path) -> None:
    """No number turns direct into lifecycle, or an average into a marginal rate."""
    assert mistakes(with_fallback(key, "neso")) == {}
    where = "carbon.accounting_fallback[0]"
    lifecycle = mistakes(with_fallback(key, "electricity_maps"))[where]
    assert "average lifecycle CO2eq, the accounting signal is average direct CO2" in lifecycle
    marginal = with_fallback(key, "watttime", signal_type='"co2_moer"')
    assert "is a marginal signal" in mistakes(marginal)[where]
    assert "is the accounting signal itself" in mistakes(with_fallback(key, "static"))[where]
    assert "forecasts only" in mistakes(with_fallback(key, "neso", zone='"13"'))[where]
    missing = with_fallback(key, "neso").replace("scale = 1.1", "")
    assert list(mistakes(missing)) == [f"{where}.scale"]


def test_a_signal_for_reports_may_be_any(key: Path) -> None:
    """Marginal or lifecycle: it stands in lines of its own; its keys are checked all the same."""
    first = f"[carbon.accounting]\n{table(key, 'neso')}\n[[carbon.report]]\n"
    assert mistakes(first + table(key, "watttime", signal_type='"co2_moer"')) == {}
    wrong = mistakes(first + table(key, "electricity_maps", key_file=""))
    assert list(wrong) == ["carbon.report[0].key_file"]


def test_files_of_secrets_are_for_their_owner_only(key: Path) -> None:
    """Open to others, missing, empty or no text: each is said without showing what is in it."""
    text = f"[carbon.accounting]\n{table(key, 'electricity_maps')}"
    key.chmod(0o644)
    wrong = mistakes(text)["carbon.accounting.key_file"]
    assert "is open to others (mode 0644); run `chmod 600" in wrong
    key.chmod(0o600)
    key.write_bytes(b"\n")
    assert "a key of 0 characters is empty" in mistakes(text)["carbon.accounting.key_file"]
    key.write_bytes(b"\xff\xfe")
    assert f"{key} is not text" in mistakes(text)["carbon.accounting.key_file"]
    key.unlink()
    assert "cannot be read" in mistakes(text)["carbon.accounting.key_file"]


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://mirror.example", True),
        ("http://mirror.example", False),
        ("http://10.0.0.5:8099", False),
        ("http://127.0.0.1:8099/eia930/v2", True),
        ("http://[::1]:8099", True),
        ("http://localhost:8099", True),
        ("http://localhost.example:8099", False),
    ],
)
def test_secrets_do_not_travel_in_the_clear(key: Path, url: str, allowed: bool) -> None:
    """Plain http is for this machine alone, wherever a secret goes along."""
    wrong = mistakes(f"[carbon.accounting]\n{table(key, 'eia930', base_url=f'{url!r}')}")
    assert bool(wrong) is not allowed
    json = f"{{ url = {url!r}, unit = 'g/kWh' }}"
    service = table(key, "http_json", http_json=json, token_file=f'"{key}"')
    assert bool(mistakes(f"[carbon.accounting]\n{service}")) is not allowed
    if not allowed:
        assert "would carry the secret in the clear" in wrong["carbon.accounting.base_url"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://me:word@mirror.example", "holds a user or password"),
        ("https://", "is not an address"),
        ("ftp://mirror.example", "is not an address"),
        ("https:///path", "is not an address"),
        ("http://a b/", "is not an address"),
        ("http://mirror.example\\x", "is not an address"),
        ("https://mirror.example:port", "its port is no number from 1 to 65535"),
        ("https://mirror.example:99999", "its port is no number from 1 to 65535"),
        ("https://[mirror", "is not an address"),
        ("mirror.example", "is not an address"),
    ],
)
def test_an_address_is_one_and_has_no_password(key: Path, url: str, words: str) -> None:
    """Errors and logs show addresses, so nothing secret may stand in one."""
    wrong = mistakes(f"[carbon.accounting]\n{table(key, 'neso', base_url=f'{url!r}')}")
    assert list(wrong) == ["carbon.accounting.base_url"]
    assert words in wrong["carbon.accounting.base_url"]
    assert "me:word" not in str(wrong)


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\x00", "\u2009", "\\"])
@pytest.mark.parametrize("url", ["http://h{}h/", "{}http://h", "http://h:80{}", "http://h/a{}b"])
def test_an_address_has_no_blank_and_no_backslash_anywhere(url: str, blank: str) -> None:
    """Libraries drop some of them silently, and then ask another host than the one that is read."""
    assert address_mistake(url.format(""), "http://h") == ""
    assert "is not an address like http://h" in address_mistake(url.format(blank), "http://h")


def test_without_a_secret_plain_http_is_fine(key: Path) -> None:
    """NESO and services without a token have nothing to hide."""
    neso = table(key, "neso", base_url='"http://mirror.example"')
    assert mistakes(f"[carbon.accounting]\n{neso}") == {}


def examples() -> list[str]:
    """Give the settings that the page on signals shows."""
    page = Path(__file__).resolve().parents[2] / "docs" / "carbon-signals.md"
    return re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", examples())
def test_examples_of_the_manual_are_settings(key: Path, example: str) -> None:
    """With secrets and the page's recording in place, none has a mistake; a misspelt one has."""
    recording = key.with_name("grid.csv")
    recording.write_text(block("docs/carbon-signals.md", "`csv`: a recording", 2))
    text = example.replace("/etc/wattmesh/grid.csv", str(recording))
    text = re.sub(r'"/etc/wattmesh/[^"]+"', f'"{key}"', text)
    assert mistakes(text) == {}
    assert mistakes(text.replace("zone =", "zones =")) != {}


def test_the_manual_shows_every_provider() -> None:
    """Each has its own part, and each live one an example; the factors are those of the code."""
    page = Path(__file__).resolve().parents[2] / "docs" / "carbon-signals.md"
    text = page.read_text("utf-8")
    assert [name for name in PROVIDERS if f"\n### `{name}`" not in text] == []
    shown = {
        name for name in PROVIDERS if any(f'provider = "{name}"' in each for each in examples())
    }
    assert shown == set(PROVIDERS)
    rows = re.findall(r"^\| (`[A-Z].*?) \| .*? \| (.*?) \|$", text, re.MULTILINE)
    told: dict[str, str] = {}
    for codes, numbers in rows:
        fuels, values = re.findall(r"[A-Z]+[0-9]*", codes), numbers.split(", ")
        told |= dict(zip(fuels, values * len(fuels) if len(values) == 1 else values, strict=True))
    assert {fuel for fuel, value in told.items() if value == "left out"} == (
        STORAGE | ENTSOE_STORAGE
    )
    factors = {**DIRECT_G_PER_KWH, **FACTORS_G_PER_KWH}
    assert {f: float(v) for f, v in told.items() if v != "left out"} == factors


def test_every_key_of_a_source_is_read_by_somebody() -> None:
    """The table of providers and the settings name the same keys, and all providers."""
    fields = CarbonSourceSection.model_fields
    assert {name for name in fields if not readers(name)} <= set(FREE)
    assert all(key in fields for facts in PROVIDERS.values() for key in facts.keys)
    allowed = fields["provider"].annotation.__args__  # type: ignore[union-attr]
    assert set(allowed) == set(PROVIDERS)


def test_what_is_not_in_the_settings_is_said_by_who_opens(tmp_path: Path) -> None:
    """The checks of the file come first; whoever opens without them gets a sentence too."""
    for name, words in {
        "wind": "'wind' is not a carbon provider; there are neso",
        "electricity_maps": "needs `key_file`",
        "static": "needs `g_per_kwh`",
        "http_json": "needs `http_json`",
    }.items():
        with pytest.raises(InputInvalid, match=words):
            provider(SourceSettings(provider=name, zone="x"), NOW)
    with pytest.raises(InputInvalid, match="needs `kind`"):
        provider(SourceSettings(provider="static", zone="x", g_per_kwh=1.0), NOW)
    with pytest.raises(InputInvalid, match="No such file"):
        read_secret(tmp_path / "no")
