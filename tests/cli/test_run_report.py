"""The report of one run: on a screen, as JSON, as a block of a model card, and as a page."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from tests.api.conftest import Served, open_folder, served, settings
from tests.builders import messages
from tests.builders.accounts import Life, energy, intensity, slot
from tests.builders.journals import fresh_file
from tests.cli import world
from tests.cli.screens.test_screens import plain
from wattmesh.controller.accounting.report.one_run import MOST_STRETCHES, stretches
from wattmesh.controller.cli.accounting import run_report_picture
from wattmesh.controller.cli.accounting.model_card import CardWords, model_card, quoted
from wattmesh.controller.cli.accounting.run_facts import facts
from wattmesh.controller.cli.accounting.run_page import page
from wattmesh.controller.cli.accounting.run_report import screen
from wattmesh.controller.cli.main import main
from wattmesh.controller.journal.energy.run_slots import RunSlot, run_slots
from wattmesh.errors import RetryLater
from wattmesh.telemetry.carbon import Signal

__all__ = ["open_folder", "served", "settings"]

NASTY = "</style><script>alert(1)</script>&\"'`"


@pytest.fixture
def view(served: Served) -> dict[str, Any]:
    """The answer about a run that was switched, all of its devices simulated."""
    world.lived(served, world.SIMULATED)
    return told(served)


def told(served: Served) -> dict[str, Any]:
    """Ask for the report of the run."""
    answer = served.get("/v1/runs/r/report")
    assert answer.status == 200, answer.body
    return dict(answer.body)


def card(view: dict[str, Any], **said: str) -> dict[str, Any]:
    """Read the block by the Hub's own package."""
    block = "\n".join(model_card(view, CardWords(**said)))
    found: Any = ModelCard(f"---\nlicense: mit\n{block}\n---\n# A model\n").data
    assert found.license == "mit"
    return dict(found.co2_eq_emissions)


class Tags(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        """Read a page."""
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag."""
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        self.said.append(data)


def harmless(text: str) -> bool:
    """Whether a page runs nothing and asks the network for nothing."""
    asking = {"script", "iframe", "object", "embed", "link", "img", "base", "form", "image"}
    for tag, attributes in Tags(text).found:
        values = [value or "" for name, value in attributes.items() if not name.startswith("xmlns")]
        outward = any("//" in value or "javascript:" in value for value in values)
        if tag in asking or outward or any(name.startswith("on") for name in attributes):
            return False
    return "url(http" not in text and "@import" not in text


def test_every_figure_rests_on_something(view: dict[str, Any]) -> None:
    """Joules and grams with their flags, the signal, the baseline and the boundary."""
    text = plain(screen(view))
    assert "GPUs, as the power source measures them" in text
    assert "neso:GB:average:direct:CO2" in text
    assert "against A, the point it was submitted at" in text
    assert "best possible" in text
    for each in facts(view):
        if re.search(r"\d (J|kJ|kWh|g|mg|kg)\b", each.figure):
            assert "sim" in each.figure, each
    total_j = sum(each["energy_j"] for each in view["stretches"])
    assert total_j == pytest.approx(view["spent"]["energy_j"])
    grams = sum(each["carbon_g"] or 0.0 for each in view["stretches"])
    assert grams == pytest.approx(view["spent"]["carbon"][0]["carbon_g"])


def test_the_block_is_read_by_the_hubs_own_package(view: dict[str, Any]) -> None:
    """Grams to nine figures, and a source with method, signal, boundary and the word simulated."""
    block = card(view, training_type="pre-training", hardware="4 x H100 80GB")
    assert block["emissions"] == pytest.approx(view["spent"]["carbon"][0]["carbon_g"], rel=1e-8)
    assert block["training_type"] == "pre-training"
    assert block["hardware_used"] == "4 x H100 80GB"
    assert block["geographical_location"] == "grid zone GB of neso"
    for words in ("SIMULATED", "neso:GB:average:direct:CO2", "GPUs, as the power source", "live"):
        assert words in block["source"]
    assert "training_type" not in card(view)
    unread = view | {"spent": view["spent"] | {"meter_scope": ""}}
    assert ("hardware_used" in card(view), "hardware_used" in card(unread)) == (True, False)


def test_the_block_says_what_is_missing_in_it(served: Served) -> None:
    """Unread time and estimates are in the source; it is not told as simulated."""
    world.lived(served, world.ESTIMATED)
    source = card(told(served))["source"]
    assert "incomplete: " in source
    assert "of GPU time were not read (at most" in source
    assert "estimated in part" in source
    assert "provisional" in source
    assert "SIMULATED" not in source


@pytest.mark.parametrize("whose", ["energy", "carbon"])
def test_the_block_has_the_flags_of_joules_and_of_grams_and_what_has_no_price(
    view: dict[str, Any], whose: str
) -> None:
    """Each alone makes the figure what it is."""
    (one,) = view["spent"]["carbon"]
    flags = {each: ["estimated"] if each == whose else [] for each in ("energy", "carbon")}
    carbon = [one | {"flags": flags["carbon"]}]
    spent = view["spent"] | {"flags": flags["energy"], "carbon": carbon, "unpriced_j": 7200.0}
    source = card(view | {"spent": spent})["source"]
    names = [[each.name for each in facts(view | {"spent": told})]
             for told in (spent, spent | {"unpriced_j": 0.0})]  # fmt: skip
    assert ["per 10^6 tokens" in each for each in names] == [False, True]
    assert "estimated in part" in source
    assert "incomplete: 7.2 kJ have no grams yet" in source


def without_grams(view: dict[str, Any]) -> dict[str, Any]:
    """Take a run's grams away, as before its first slot is priced."""
    spent = view["spent"] | {"carbon": [], "carbon_g": 0.0}
    return view | {"spent": spent}


def two_signals(view: dict[str, Any]) -> dict[str, Any]:
    """Give a run grams in two signals."""
    (one,) = view["spent"]["carbon"]
    both = [one, one | {"signal": "eia930:CISO:average:direct:CO2"}]
    return view | {"spent": view["spent"] | {"carbon": both, "carbon_g": None}}


@pytest.mark.parametrize(
    ("spoil", "words"), [(without_grams, "has a price"), (two_signals, "never added")]
)
def test_unknown_grams_have_no_block_and_are_a_dash(
    view: dict[str, Any], spoil: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    """Never a zero: no block, one sentence; on screen and page a dash, or a line per signal."""
    spoiled = spoil(view)
    with pytest.raises(RetryLater, match=words):
        model_card(spoiled, CardWords())
    text = plain(screen(spoiled)) + page(spoiled, "")
    assert words in text
    assert not re.search(r"(?<![\d.])0 (g|mg|kg)\b", text)
    assert "per 10^6 tokens" not in text


@pytest.mark.parametrize("text", [NASTY, 'a"\\b\n c: #d', "Québec - 東京 \U0001f300 \x07\x85"])
def test_what_a_user_says_cannot_leave_its_place_in_the_block(
    view: dict[str, Any], text: str
) -> None:
    """Quotes, line ends and signs of any script come back as they were."""
    block = card(view, location=text, hardware=text, training_type=text)
    assert block["geographical_location"] == block["hardware_used"] == text
    assert quoted(text).isascii()


def spoiled_names(view: dict[str, Any]) -> dict[str, Any]:
    """Let everybody who names something be hostile."""
    line = view["line"] | {"layout": NASTY, "state": NASTY}
    spent = view["spent"] | {"name": NASTY, "baseline": NASTY, "simulated": [NASTY]}
    switches = [
        {"created_at": view["at"], "from_point": NASTY, "to_point": NASTY}
        | {"state": NASTY, "reason": NASTY}
    ]
    spoiled = {"finish_reason": NASTY, "boundary": NASTY, "switches": switches}
    return view | spoiled | {"line": line, "spent": spent}


def test_the_page_runs_nothing_and_asks_for_nothing(view: dict[str, Any]) -> None:
    """Names, reasons and points of users are text, in the words and in the picture."""
    picture = run_report_picture.draw(spoiled_names(view))
    made = page(spoiled_names(view), picture)
    assert harmless(made)
    assert "<script" not in made
    assert made.count("&lt;script&gt;") >= 5
    assert NASTY in "".join(Tags(made).said)
    assert "default-src 'none'" in made
    ET.fromstring(picture)
    for color in ("#1f2933", "#7b8794", "#e4e7eb"):
        assert color not in picture  # the page chooses these, for light and dark
    assert "prefers-color-scheme: dark" in made


def drawn(view: dict[str, Any]) -> str:
    """Draw a report."""
    return run_report_picture.draw(view)


def test_what_is_not_known_is_a_gap_in_the_picture(view: dict[str, Any]) -> None:
    """Not a line at zero; and time that was not read is shaded, above and below."""
    dark = [each | {"energy_j": None, "carbon_g": None, "intensity_g_per_kwh": None}
            for each in view["stretches"]]  # fmt: skip
    curve = re.compile(rf'<path d="M[^"]*"[^>]*stroke: {run_report_picture.POWER}')
    assert curve.search(drawn(view))
    assert not curve.search(drawn(view | {"stretches": dark}))
    unread = [each | {"unobserved_s": 30.0} for each in view["stretches"]]
    assert drawn(view | {"stretches": unread}).count("opacity: 0.18") == 2 * len(unread)
    assert "opacity: 0.18" not in drawn(view)


@pytest.mark.parametrize(
    "hostile",
    [
        "<p><script>x()</script></p>",
        "<svg onload='x()'></svg>",
        "<img src='https://elsewhere/x.png'>",
        "<a href='javascript:x()'>y</a>",
    ],
)
def test_a_page_that_runs_something_is_caught(hostile: str) -> None:
    """Sabotaged twin of the check above."""
    assert not harmless(f"<html><body>{hostile}</body></html>")


def test_the_command_writes_page_block_and_json(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file with the picture inline; the block on standard output; files whole or not at all."""
    world.lived(served, world.SIMULATED)
    asked = ["report", "llm", "--socket", str(served.socket)]
    assert main([*asked, "--html", str(tmp_path / "run.html"), "--model-card"]) == 0
    assert capsys.readouterr().out.startswith("co2_eq_emissions:\n  emissions: ")
    text = (tmp_path / "run.html").read_text()
    assert text.count("<svg") == 1
    assert harmless(text)
    assert main([*asked, "-o", str(tmp_path / "run.txt")]) == 0
    assert "emitted" in (tmp_path / "run.txt").read_text()
    assert main([*asked, "--json"]) == 0
    assert '"stretches"' in capsys.readouterr().out
    for refused in (
        [*asked, "--month", "2026-01"],
        [*asked, "--format", "png"],
        [*asked, "--model-card", "--json"],
        [*asked, "--location", "London"],
        ["report", "--model-card", "--socket", str(served.socket)],
        ["report", "nobody", "--socket", str(served.socket)],
        [*asked, "--html", str(tmp_path / "no" / "run.html")],
    ):
        assert main(refused) == 1
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1, lines
        assert "Traceback" not in lines[0]


def test_without_grams_the_command_writes_nothing(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1, one sentence, no page beside it; the page alone says why there are none."""
    Life(journal=served.journal, power_w=300.0, rate=900.0, signal=world.NESO).begin()
    asked = ["report", "llm", "--socket", str(served.socket), "--html", str(tmp_path / "run.html")]
    assert main([*asked, "--model-card"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert "no block to write" in printed.err
    assert not (tmp_path / "run.html").exists()
    assert main(asked) == 0
    assert "No slot can be drawn" in (tmp_path / "run.html").read_text()


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No daemon: one sentence, and no file."""
    out = tmp_path / "run.html"
    assert main(["report", "llm", "--socket", str(tmp_path / "no.sock"), "--html", str(out)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not out.exists()


def test_without_its_daemon_the_journal_tells_the_same(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--offline`: a run whose daemon is gone has its page and its block."""
    world.lived(served, world.SIMULATED)
    config = tmp_path / "wattmesh.toml"
    config.write_text(f'[journal]\nurl = "sqlite:///{served.folder}/journal.db"\n')
    asked = ["report", "llm", "--offline", str(config)]
    assert main([*asked, "--model-card", "--html", str(tmp_path / "run.html")]) == 0
    live = [line for line in model_card(told(served), CardWords()) if "emissions:" in line]
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "emissions:" in line] == live
    assert harmless((tmp_path / "run.html").read_text())


def test_an_observed_run_has_a_report_without_a_saving(served: Served) -> None:
    """It has no submitted point: a dash with the reason, and its picture all the same."""
    assert served.register(capabilities=["observed"]).status == 200
    rows = [energy(number, 5_000_000, run=messages.RUN) for number in range(3)]
    served.journal.ledger.book(rows, [])
    view = dict(served.get(f"/v1/runs/{messages.RUN}/report").body)
    saved = next(each for each in facts(view) if each.name == "saved")
    assert (saved.figure, "only observed" in saved.rests_on) == ("-", True)
    assert len(view["stretches"]) == 3
    made = page(view, run_report_picture.draw(view))
    assert harmless(made)
    assert "kJ" in made


def test_a_long_run_is_told_in_at_most_400_parts(tmp_path: Path) -> None:
    """100,000 rows: added up, none lost, dark ones not zero."""
    journal = fresh_file(tmp_path / "journal.db")
    intensity(journal, [200.0] * 10, signal=Signal(provider="neso", zone="GB"))
    rows = [
        energy(number, None if number % 50 == 0 else 1000, unobserved_ms=10, gpu_uuid=f"g{gpu}")
        for number in range(25_000)
        for gpu in range(4)
    ]
    for first in range(0, len(rows), 10_000):
        journal.ledger.book(rows[first : first + 10_000], [])
    found = stretches(run_slots(journal.database, "r"), one_signal=True)
    journal.close()
    assert len(found) == MOST_STRETCHES
    assert sum(each.energy_j or 0.0 for each in found) == pytest.approx(98_000.0)
    assert sum(each.unobserved_s for each in found) == pytest.approx(1000.0)
    assert {each.carbon_g for each in found} == {None}
    assert (found[0].start, found[-1].end) == (slot(0), slot(25_000))


def test_what_was_not_read_is_no_zero_in_a_stretch() -> None:
    """Slots without joules or price are None; grams in two signals are in no stretch."""
    first = RunSlot(start=slot(0), end=slot(1), energy_mj=None, unobserved_ms=30_000)
    (dark,) = stretches([first], one_signal=True)
    assert (dark.energy_j, dark.carbon_g, dark.intensity_g_per_kwh) == (None, None, None)
    priced = replace(first, energy_mj=10, carbon_ug=5, g_milli_per_kwh=200_000.0)
    (known,) = stretches([priced], one_signal=True)
    assert (known.energy_j, known.carbon_g, known.intensity_g_per_kwh) == (0.01, 5e-6, 200.0)
    (several,) = stretches([priced], one_signal=False)
    assert (several.energy_j, several.carbon_g) == (0.01, None)
    assert stretches([], one_signal=True) == ()
