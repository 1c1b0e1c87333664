"""`wattmesh powercap`: what people type, and what they read."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli import facts
from tests.cli.answering import answering
from wattmesh.controller.cli.main import main
from wattmesh.controller.cli.runs.status_screen import screen
from wattmesh.controller.cli.services.powercap import ends, watts
from wattmesh.errors import InputInvalid

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
CAP: dict[str, Any] = {
    "cap_w": 150000.0,
    "start": "2026-12-01T12:00:00Z",
    "until": "2026-12-01T18:00:00Z",
    "by": "ana (uid 1000)",
    "reason": "the grid operator asks",
    "meets": True,
    "bound_w": 149000.0,
    "lowest_w": 90000.0,
    "sentence": "The power cap of 150 kW until 18:00 UTC holds 256 GPUs at 149 kW at most.",
    "gpus": 256,
    "deaf": [],
    "slowed": {"llama": "A"},
    "late": ["llama"],
}


@pytest.mark.parametrize(
    ("text", "cap_w"),
    [("150kW", 150e3), ("1.2MW", 1.2e6), ("900W", 900.0), (" 5 kW ", 5e3), ("5 kw", 5e3)],
)
def test_a_power_is_read_with_its_unit(text: str, cap_w: float) -> None:
    """Watts inside."""
    assert watts(text) == pytest.approx(cap_w)


@pytest.mark.parametrize("text", ["150", "kW", "150 kWh", "-5kW", "5mW", "1e3W", "5 horses"])
def test_a_power_that_may_mean_anything_is_refused(text: str) -> None:
    """No unit, another unit, milliwatts."""
    with pytest.raises(InputInvalid):
        watts(text)


def test_a_cap_has_exactly_one_end() -> None:
    """A time with its zone, or a duration."""
    assert ends(None, "2h", NOW) == NOW + timedelta(hours=2)
    assert ends(None, "90min", NOW) == NOW + timedelta(minutes=90)
    assert ends("2026-12-01T18:00Z", None, NOW) == NOW + timedelta(hours=6)
    for until, lasts in ((None, None), ("2026-12-01T18:00Z", "2h")):
        with pytest.raises(InputInvalid, match="either --until TIME or --for 2h"):
            ends(until, lasts, NOW)
    bad = (("tomorrow", None), ("2026-12-01T18:00", None), (None, "soon"), (None, "9999999d"))
    for until, lasts in (*bad, (None, "99999999999999d")):
        with pytest.raises(InputInvalid):
            ends(until, lasts, NOW)


def test_an_announced_cap_is_sent_with_its_begin_shown_and_withdrawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--for` counts from its begin; the screen says when it begins and who announced it."""
    sentence = "A power cap of 150 kW is announced from 16:00 UTC until 18:00 UTC."
    ahead = {"sentence": sentence, "by": "ana", "reason": "peak", "cap_w": 150000.0}
    said = {
        "/v1/powercap": (200, {"cap": None, "announced": [ahead], "done": "Announced."}),
        "/v1/powercap/withdraw": (200, {"done": "Withdrawn.", "changed": []}),
    }
    socket = ("--socket", str(tmp_path / "s"))
    with answering(tmp_path / "s", said) as server:
        words = ["powercap", "150kW", "--from", "2026-12-01T16:00Z", "--for", "2h"]
        assert main([*words, *socket]) == 0
        assert main(["powercap", "show", *socket]) == 0
        assert main(["powercap", "withdraw", *socket]) == 0
        shown = capsys.readouterr().out
        assert main([*words[:3], "at noon", *words[4:], *socket]) == 1
        for what in ("show", "end", "withdraw"):
            assert main(["powercap", what, "--for", "2h", *socket]) == 1
            assert f"`powercap {what}` takes no times" in capsys.readouterr().err
    assert len(server.asked) == 3
    (order,) = [sent for _, _, sent in server.asked if sent and "cap_w" in sent]
    assert order["from"] == "2026-12-01T16:00:00+00:00"
    assert order["until"] == "2026-12-01T18:00:00+00:00"
    assert f"No power cap is in force.\n{sentence}\nannounced by ana: peak" in shown


def test_a_triggered_cap_is_shown_with_its_cause_and_ended_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who set each cap and why; what holds back in red; one field more in the request."""
    why = "carbon: 310 g/kWh on average, at or above 290 g/kWh (neso:GB, issued 13:30 UTC)"
    facts = {"signal": "neso:GB", "unit": "g/kWh", "value": 310.0, "threshold": 290.0}
    triggered = CAP | {"origin": "carbon", "reason": why, "trigger": facts}
    beside = {
        "sentence": "A power cap of 200 kW holds beside it.",
        "by": "ana",
        "reason": "contract",
    }
    demand = [
        {"origin": "carbon", "sentence": "Demand response by carbon caps.", "held": False},
        {"origin": "price", "sentence": "Demand response by price holds.", "held": True},
    ]
    told = {"cap": triggered, "beside": [beside], "announced": [], "demand_response": demand}
    said = {
        "/v1/powercap": (200, told),
        "/v1/powercap/end": (200, {"done": "Ended.", "changed": []}),
    }
    socket = ("--socket", str(tmp_path / "s"))
    with answering(tmp_path / "s", said) as server:
        assert main(["powercap", "show", *socket]) == 0
        shown = capsys.readouterr().out
        assert main(["powercap", "end", "--triggered", *socket]) == 0
        assert main(["powercap", "show", "--triggered", *socket]) == 1
        assert "--triggered is for `powercap end`" in capsys.readouterr().err
    assert f"triggered by {why}" in shown
    assert "A power cap of 200 kW holds beside it.\nordered by ana: contract" in shown
    assert "Demand response by carbon caps." in shown
    assert "Demand response by price holds." in shown
    assert [sent for _, _, sent in server.asked if sent] == [{"triggered": True}]


def test_a_cap_is_ordered_shown_and_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One request each; the screen says who pays for it."""
    said = {
        "/v1/powercap": (200, {"at": "2026-12-01T12:00:00Z", "cap": CAP, "done": "Capped."}),
        "/v1/powercap/end": (200, {"done": "Ended.", "changed": []}),
    }
    socket = ("--socket", str(tmp_path / "s"))
    with answering(tmp_path / "s", said) as server:
        words = ["powercap", "150kW", "--until", "2026-12-01T18:00Z", "--reason", "hot"]
        assert main([*words, *socket]) == 0
        assert main(["powercap", "show", *socket]) == 0
        assert main(["powercap", "end", *socket]) == 0
        capsys.readouterr()
        assert main(["powercap", "show", *socket, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["cap"] == CAP
        assert main(["powercap", "show", *socket]) == 0
    assert [body for method, _, body in server.asked if method == "POST"] == [
        {"cap_w": 150000.0, "until": "2026-12-01T18:00:00+00:00", "reason": "hot"},
        {},
    ]
    shown = capsys.readouterr().out
    assert CAP["sentence"] in shown
    assert "llama gave up A for it and will miss its deadline" in shown


def test_status_shows_a_cap_that_is_kept_once() -> None:
    """One that cannot be kept stands among the troubles."""
    view = {**facts.status(), "cap": CAP}
    assert str(next(line for line in screen(view) if "cap    " in str(line))).endswith(
        CAP["sentence"]
    )
    broken = {**view, "cap": CAP | {"meets": False}}
    assert not any("cap    " in str(line) for line in screen(broken))


def test_a_typing_error_is_one_sentence_and_orders_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1, as for every refusal."""
    with answering(tmp_path / "s", {}) as server:
        assert main(["powercap", "150", "--for", "2h", "--socket", str(tmp_path / "s")]) == 1
    assert "write 150kW, 1.2MW or 900W" in capsys.readouterr().err
    assert server.asked == []
