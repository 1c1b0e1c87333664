"""The settings file: every mistake named at once, in words that say what is allowed."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattmesh.controller.agent.link import ControllerLink
from wattmesh.controller.settings.read import Settings, load, parse
from wattmesh.controller.settings.secrets import read_secret
from wattmesh.controller.settings.text import keys, sample
from wattmesh.errors import FixInput, SettingsInvalid
from wattmesh.policies.decision import Mode
from wattmesh.telemetry.actuator.settings import load as actuator_settings

ETC = Path("/etc/wattmesh/wattmesh.toml")


def mistakes(text: str) -> dict[str, str]:
    """Give the mistakes of a settings file by key path."""
    with pytest.raises(SettingsInvalid) as caught:
        parse(text, where=ETC)
    return dict(caught.value.mistakes)


def test_the_three_mistakes_of_the_manual_are_all_named() -> None:
    """A file with three mistakes names all three, with the key path and what is allowed."""
    with pytest.raises(SettingsInvalid) as caught:
        parse(
            '[carbon.accounting]\nprovider = "neso"\nzone = "UK"\n'
            '[runs.llama-8b]\ndeadline = "tomorrow"\n'
            "[budget.cluster]\ngrams = -5\n",
            where=ETC,
        )
    assert str(caught.value).splitlines() == [
        "settings /etc/wattmesh/wattmesh.toml has 3 mistakes",
        '  runs.llama-8b.deadline    "tomorrow" is not a time; write 2026-12-01T00:00:00Z',
        "  budget.cluster.grams      -5 must be above 0",
        '  carbon.accounting.zone    "UK" is not a zone of neso; it serves GB (and, to decide on, '
        "its regions 1 to 17 and postcodes like RG10)",
    ]


def test_a_file_without_mistakes_is_taken() -> None:
    """The twin: the same file without its mistakes is taken, times and all."""
    settings = parse(
        'mode = "act"\n[carbon.accounting]\nprovider = "neso"\nzone = "GB"\n'
        '[runs.llama-8b]\ndeadline = "2026-12-01T00:00:00Z"\n[budget.cluster]\ngrams = 5\n',
        where=ETC,
    )
    assert settings.mode is Mode.ACT
    assert str(settings.runs["llama-8b"].deadline) == "2026-12-01 00:00:00+00:00"
    assert settings.budget["cluster"].grams == 5.0


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('mode = "atc"', "mode", '"atc" is not one of observe, advise, act'),
        ("[policy]\ncaution = 0.1", "policy.caution", "is gone: plans take every hour"),
        ("modee = 1", "modee", "is not a setting; did you mean mode?"),
        ("_cli_parse_args = true", "_cli_parse_args", "is not a setting; allowed here: actuator"),
        ('_env_file = "/etc/hostname"', "_env_file", "is not a setting; allowed here: actuator"),
        ("[lops]\ncycle_s = 1", "lops", "is not a setting; did you mean loops?"),
        ("[loops]\ncycel_s = 1", "loops.cycel_s", "did you mean loops.cycle_s?"),
        ("[loops]\ncycle_s = 0", "loops.cycle_s", "0 must be above 0"),
        ('[loops]\ncycle_s = "5"', "loops.cycle_s", '"5" is not a number'),
        ("[loops]\ncycle_s = nan", "loops.cycle_s", "nan"),
        ("[runs.a]\ndeadline_after_s = inf", "runs.a.deadline_after_s", "inf"),
        ("[runs.a]\ndeadline_after_s = 1e12", "runs.a.deadline_after_s", "1000000000000.0"),
        ("[loops]\ncycle_s = true", "loops.cycle_s", "true is not a number"),
        ("loops = 3", "loops", "3 is not a table"),
        ("[policy]\nmax_switches_per_day = 1.5", "policy.max_switches_per_day", "whole number"),
        ('[policy]\nequivalence = ["exact", "all"]', "policy.equivalence[1]", "not one of exact"),
        ("[policy]\nequivalence = []", "policy.equivalence", "allows no point"),
        ("[policy]\nsla_throughput_share = 1.0", "policy.sla_throughput_share", "below 1"),
        ("[policy]\nsla_window_s = 7200.0", "policy.sla_window_s", "sla_throughput_share"),
        ('[site]\ntimezone = "Europe/Londen"', "site.timezone", "did you mean Europe/London?"),
        ('[site]\ntimezone = "../etc"', "site.timezone", "is not a time zone"),
        *(
            (
                f'[api]\ngroup = "{jobs}"\noperators_group = "{operators}"\n[actuator]\n'
                f'group = "{actuator}"',
                key,
                words,
            )
            for jobs, operators, actuator, key, words in (
                ("a", "b", "a", "actuator.group", "is api.group too, so every job owner could"),
                ("a", "b", "b", "actuator.group", "is api.operators_group too; give it a group"),
                ("a", "a", "b", "api.group", "so every job owner would be an operator"),
                ("", "b", "b", "actuator.group", "is api.operators_group too; give it a group"),
            )
        ),
        ("[actuator]\nobligation_days = 367.0", "actuator.obligation_days", "366"),
        ("[site]\npue = 1.3", "site.pue", 'only read when energy_boundary = "facility"'),
        ('[metrics]\nlisten = "9464"', "metrics.listen", 'write "127.0.0.1:9464"'),
        ('[metrics]\nlisten = "h:70000"', "metrics.listen", "a port up to 65535; write"),
        (
            '[agent]\ncontroller = "https://head:99999"',
            "agent.controller",
            '"https://head:99999" is not an address: its port is no number from 1 to 65535',
        ),
        ('[agent]\ncontroller = "https://head:0"', "agent.controller", "from 1 to 65535"),
        ('[agent]\ncontroller = "https://"', "agent.controller", "like https://head-1:9465"),
        ('[agent]\ncontroller = "unix://run/w.sock"', "agent.controller", "nor unix:///path"),
        (
            '[power]\nsource = "none"\n[power.prometheus]\nurl = "http://p:99999"\n'
            'exporter = "dcgm"',
            "power.prometheus.url",
            "its port is no number from 1 to 65535",
        ),
        (f'[api]\nsocket = "/{"x" * 120}"', "api.socket", "has 121 bytes; a Unix socket's path"),
        ('[journal]\nurl = "mysql://x"', "journal.url", "is not a database"),
        ('[journal]\nurl = "sqlite:////a?b/journal.db"', "journal.url", "write %3F for `?`"),
        ('[journal]\nurl = "postgresql://u:p@h/n"', "journal.url", "holds a password"),
        ('[power]\nlibrary = "/no.so"\nsource = "nvml"', "power.library", "is no file"),
        ("[power]\nrapl = true", "power.rapl", 'only read when source = "nvml"'),
        (
            '[power]\nsource = "agents"\n[power.static]\ngpu_power_w = 1\ngpu_uuids = ["G"]',
            "power.static",
            'only read when source = "nvml" or "amd" or "none"',
        ),
        (
            '[power.prometheus]\nurl = "http://x"\nexporter = "zeusd"',
            "power.prometheus.exporter",
            "dcgm, kepler, wattmesh",
        ),
        ("[runs.a]\ndeadline = 2026-12-01", "runs.a.deadline", "has no hour"),
        ("[runs.a]\ndeadline = 2026-12-01T00:00:00", "runs.a.deadline", "has no time zone"),
        ('[runs.a]\nbaseline = "A"', "runs.a.baseline", "needs a catalogue"),
        ('[runs.a]\ncatalogue = "no.toml"', "runs.a.catalogue", "/etc/wattmesh/no.toml"),
        (
            "[runs.a]\ndeadline = 2026-12-01T00:00:00Z\ndeadline_after_s = 5",
            "runs.a.deadline_after_s",
            "exclude each other",
        ),
        ("[budget.b]\ngrams = 1", "budget.b", "belongs to no run of this file; allowed: cluster"),
        ('[carbon.accounting]\nprovider = "csv"\nzone = "GB"', "carbon.accounting.file", "missing"),
        (
            '[carbon.accounting]\nprovider = "neso"\nzone = "GB"\ncompress = 2.0',
            "carbon.accounting.compress",
            'only read when provider = "csv"',
        ),
        ('[carbon.accounting]\nzone = "GB"', "carbon.accounting.provider", "is missing: `neso`"),
        ('[carbon]\ndecision = "x"', "carbon.decision", '"x" is not a table'),
    ],
)
def test_each_mistake_names_its_key_and_what_is_allowed(text: str, key: str, words: str) -> None:
    """Every kind of mistake is told under its own key, in words without the library's."""
    found = mistakes(text)
    assert words in found[key]
    assert not {"Input should", "pydantic"} & set(str(found).split("'"))


def test_one_mistake_hides_no_other() -> None:
    """A wrong type in one table does not hide what only several keys together show in another."""
    found = mistakes(
        'mode = 3\n[api]\nsocket = ""\n[site]\ntimezone = "Mars/Phobos"\n'
        '[carbon.accounting]\nprovider = "nesoo"\nzone = "GB"\n[metrics]\nlisten = "x"\n'
    )
    assert set(found) == {
        "mode",
        "api.socket",
        "site.timezone",
        "carbon.accounting.provider",
        "metrics.listen",
    }


def test_a_baseline_must_be_in_the_catalogue(tmp_path: Path) -> None:
    """A baseline that the catalogue lacks is named with the points there are."""
    (tmp_path / "c.toml").write_text(
        '[job]\nname = "j"\ntokens_total = 10\nreference = "A"\n'
        '[[point]]\nid = "A"\ngpus = 1\nlayout = { tp = 1 }\ntokens_per_s = 1\npower_w = 1\n'
    )
    text = '[runs.j]\ncatalogue = "c.toml"\nbaseline = "B"\n'
    with pytest.raises(SettingsInvalid) as caught:
        parse(text, where=tmp_path / "w.toml")
    ((key, words),) = caught.value.mistakes
    assert key == "runs.j.baseline"
    assert words == f'"B" is not in {tmp_path / "c.toml"}; it has A'
    assert parse(text.replace('"B"', '"A"'), where=tmp_path / "w.toml").runs["j"].baseline == "A"


def test_a_catalogue_with_mistakes_is_named_with_them(tmp_path: Path) -> None:
    """Mistakes inside a catalogue that the settings name are mistakes of the settings."""
    (tmp_path / "c.toml").write_text('[job]\nname = "j"\n')
    with pytest.raises(SettingsInvalid) as caught:
        parse('[runs.j]\ncatalogue = "c.toml"\n', where=tmp_path / "w.toml")
    assert {key for key, _ in caught.value.mistakes} == {"runs.j.catalogue"}


def test_a_secret_must_be_closed_to_others(tmp_path: Path) -> None:
    """A password file that others may read is refused with the command that mends it."""
    secret = tmp_path / "password"
    secret.write_text("x")
    secret.chmod(0o644)
    text = f'[journal]\nurl = "postgresql://u@h/n"\npassword_file = "{secret}"\n'
    assert f"chmod 600 {secret}" in mistakes(text)["journal.password_file"]
    secret.chmod(0o600)
    assert parse(text, where=ETC).journal.password_file == secret


def odd_files(folder: Path) -> Iterator[Path]:
    """Make what lies where a file is named, and can never be read to its end."""
    folder.mkdir()
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "endless").symlink_to("/dev/zero")
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (folder / "sparse").chmod(0o600)
    (folder / "folder").mkdir(0o700)
    yield from folder.iterdir()


def test_what_is_no_file_is_named_and_neither_waited_for_nor_read(tmp_path: Path) -> None:
    """A pipe, an endless device, a huge file, a folder: wherever settings name a file."""
    for odd in odd_files(tmp_path / "odd"):
        named = {
            "runs.j.catalogue": f'[runs.j]\ncatalogue = "{odd}"\n',
            "carbon.accounting.file": (
                f'[carbon.accounting]\nprovider = "csv"\nzone = "DE"\nfile = "{odd}"\n'
            ),
            "carbon.accounting.key_file": (
                '[carbon.accounting]\nprovider = "electricity_maps"\nzone = "DE"\n'
                f'key_file = "{odd}"\n'
            ),
            "api.agents_token_file": f'[api]\nlisten = "h:1"\nagents_token_file = "{odd}"\n',
            "agent.token_file": f'[agent]\ntoken_file = "{odd}"\n',
        }
        for key, text in named.items():
            said = mistakes(text)[key]
            assert re.search("no regular file|larger than", said), said
        for read in (load, actuator_settings):
            with pytest.raises(SettingsInvalid, match=r"no regular file|larger than"):
                read(odd)
        with pytest.raises(FixInput, match=r"no regular file|larger than"):
            read_secret("journal.password_file", odd)
        with pytest.raises(FixInput, match=r"no regular file|larger than"):
            ControllerLink("https://head", ca_file=odd)


def test_a_file_is_found_behind_a_link(tmp_path: Path) -> None:
    """The twin: configuration management puts links where files are named."""
    (tmp_path / "w.toml").write_text('mode = "advise"\n')
    (tmp_path / "link.toml").symlink_to("w.toml")
    assert load(tmp_path / "link.toml").mode is Mode.ADVISE


def test_a_relative_path_counts_from_the_files_folder(tmp_path: Path) -> None:
    """Where the daemon happens to be started changes no path."""
    settings = parse('[api]\nsocket = "w.sock"\n', where=tmp_path / "w.toml")
    assert settings.api.socket == tmp_path / "w.sock"


def test_a_file_that_is_no_toml_or_not_there_is_one_mistake(tmp_path: Path) -> None:
    """A missing file, and one that is no TOML, say what to do next."""
    with pytest.raises(SettingsInvalid, match="wattmesh settings sample"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("mode = = 1")
    with pytest.raises(SettingsInvalid, match=r"is not TOML: .*line 1"):
        load(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsInvalid, match="not UTF-8"):
        load(tmp_path / "bytes.toml")


def test_the_environment_does_not_override_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader sees in the file is what holds."""
    monkeypatch.setenv("MODE", "act")
    monkeypatch.setenv("POLICY", '{"dwell_s": 1}')
    assert parse("", where=ETC) == Settings()
    assert Settings().mode is Mode.OBSERVE


def test_the_sample_is_valid_and_sets_nothing_but_defaults() -> None:
    """The printed sample loads, and apart from its example signal is the defaults."""
    settings = parse(sample(), where=ETC)
    assert settings.model_copy(update={"carbon": None}) == Settings()
    assert settings.carbon is not None


def test_the_sample_names_every_key_and_every_key_is_documented() -> None:
    """No key is without its meaning, and none is missing from the sample."""
    text = sample()
    for each in keys():
        assert len(each.meaning) > 15, each.path
        assert each.kind, each.path
        assert f"{each.path.rpartition('.')[2]} = " in text, each.path


def test_every_line_of_the_sample_can_be_uncommented() -> None:
    """An operator may take any `#` away: the examples behind them are well formed."""
    lines = [
        line[2:] if line.startswith("# ") and (" = " in line or line.startswith("# [")) else line
        for line in sample().splitlines()
    ]
    wrong = mistakes("\n".join(lines))
    # Only files that are not there, and keys that exclude each other, may be named.
    assert {key for key, words in wrong.items() if "is only read when" not in words} <= {
        "runs.llama-8b.catalogue",
        "runs.llama-8b.deadline_after_s",
        "runs.llama-8b.expert_sweep",
        "journal.password_file",
        "api.tls_key",
        "api.agents_token_file",
        "agent.token_file",
        "power.library",
        "power.node_meter.password_file",
        "power.node_meter.ca_file",
        "carbon.accounting.file",
        "carbon.accounting.starts_at",
        "carbon.accounting.plays_at",
        "carbon.decision.file",
        "carbon.decision.starts_at",
        "carbon.decision.plays_at",
        "carbon.exogenous[0].token_file",
        "demand_response.carbon",
        "demand_response.price",
        "demand_response.price.series",
    }, wrong
