"""What anybody may read, with a journal that answers and with one that does not."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.api.conftest import Served
from tests.builders import messages
from tests.builders.carbon import intensities
from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.cycle.fleet import GpusRead
from wattmesh.controller.loop_facts import NewestTurn, Signals
from wattmesh.controller.status.status import why_unread
from wattmesh.policies.decision import Action, Decision, Mode
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.readings import Quality

SIGNAL = Signal(provider="csv", zone="GB")


def carbon(served: Served, *values: float) -> None:
    """Put half hours into the journal: the running one provisional, the rest forecast."""
    now = served.clock.wall
    interval = timedelta(minutes=30)
    running, *ahead = intensities(SIGNAL, values, now, interval, quality=Quality.FORECAST)
    points = [replace(running, quality=Quality.PROVISIONAL), *ahead]
    served.journal.carbon.store(points)
    served.journal.carbon.fetched(SIGNAL, now, ok=True)
    facts_of = SignalFacts(signal=SIGNAL, interval_s=1800.0, stale_after_s=5400.0)
    served.loop_facts.signals = Signals(decision=facts_of, accounting=facts_of)


def decided(served: Served, reason: str, slack_s: float | None = None) -> None:
    """Let the newest cycle have decided something."""
    decision = Decision(
        run=messages.RUN, action=Action.HOLD, kind="dwell", reason=reason, slack_s=slack_s
    )
    report = CycleReport(at=served.clock.wall, sentence=reason, decisions=(decision,))
    served.loop_facts.turned = NewestTurn(monotonic_s=served.clock.monotonic_s, report=report)
    served.cycle.turn()


def test_a_healthy_daemon_shows_everything_and_no_trouble(served: Served) -> None:
    """Run, signal, forecast, newest sentence: all there, and nothing for a human to do."""
    served.register()
    served.post(f"/v1/runs/{messages.RUN}/progress", messages.progress())
    carbon(served, 212.0, 150.0, 118.0, 170.0)
    decided(served, "Staying at A: dwell.", slack_s=100.0)
    view = served.get("/v1/status").body
    assert view["trouble"] == []
    assert (view["carbon"]["g_per_kwh"], view["carbon"]["quality"]) == (212.0, "provisional")
    assert view["carbon"]["low"]["g_per_kwh"] == 118.0
    assert view["simulated"] == ["grid (csv:GB:average:direct:CO2)"]
    (run,) = view["runs"]
    assert (run["point"], run["layout"], run["step"], run["activity"]) == (
        "A",
        "dp2 tp2",
        10,
        "holding",
    )
    assert run["j_per_token"] == pytest.approx(1.6)
    assert (run["sentence"], run["slack_s"]) == ("Staying at A: dwell.", 100.0)
    assert view["cycle"]["sentence"] == "Staying at A: dwell."


def test_trouble_names_what_needs_a_human_and_what_to_do(served: Served) -> None:
    """A lost run, a silent signal, a missed deadline and failed switches each ask for an act."""
    served.register()
    carbon(served, 212.0)
    decided(served, "x", slack_s=-7200.0)
    served.journal.runs.freeze(
        messages.RUN, reason="2 switches failed in a row", by="wattmesh", now=served.clock.wall
    )
    served.clock.pass_s(6000.0)
    said = served.get("/v1/status").body["trouble"]
    for words in (
        "The cycle loop has made no progress for 100 min",
        "csv was last heard 6000 s ago",
        "llama-8b has not been heard for 100 min (last at step 0, registered)",
        "2 switches failed in a row. It trains on unswitched; read `wattmesh why llama-8b`",
        "llama-8b will miss its deadline by 2.0 h",
    ):
        assert any(words in each for each in said), (words, said)


def test_an_observed_run_names_its_gpus_when_it_knows_them(served: Served) -> None:
    """Until then the screen says why it does not; it has no layout, and owes nobody a step.

    The twin: what an attached run said of itself is not overwritten by a later introduction.
    """

    def line() -> dict[str, Any]:
        (run,) = served.get("/v1/status").body["runs"]
        return dict(run)

    known: dict[str, Any] = {"ranks": (0,), "world_size": 1, "capabilities": ("observed",)}
    served.register(**known, gpus=("",))
    assert (line()["layout"], line()["point"], line()["activity"]) == ("", "", "observed")
    assert "not known" not in line()["sentence"]
    why = ("observed", "gpus unknown: 8 GPUs are visible")
    served.register(**known | {"capabilities": why}, gpus=("",))
    assert line()["sentence"] == "Not all its GPUs are known: 8 GPUs are visible."
    spent = served.get(f"/v1/runs/{messages.RUN}/spent").body
    assert (spent["energy_j"], spent["why_unknown"][:18]) == (None, "Power is not read:")
    served.register(**known | {"ranks": (0, 1), "world_size": 2}, gpus=("G1", "G2"))
    assert (line()["sentence"], line()["ranks"]) == ("", 2)
    assert served.journal.runs.all(served.clock.wall)[0].gpus == ("G1", "G2")
    served.clock.pass_s(25.0)
    served.post(f"/v1/runs/{messages.RUN}/heartbeat", messages.heartbeat(phase="training"))
    served.clock.pass_s(25.0)
    served.post(f"/v1/runs/{messages.RUN}/heartbeat", messages.heartbeat(phase="training"))
    served.clock.pass_s(25.0)
    assert (line()["state"], line()["waits_for"]) == ("live", "")
    served.register(gpus=("G9",) * 4)
    assert served.journal.runs.all(served.clock.wall)[0].gpus == ("G1", "G2")


def test_a_run_that_takes_no_step_says_what_it_waits_for(served: Served) -> None:
    """Since its last step, with when it was heard last and in which phase; no trouble for anybody.

    The twin: a run that steps as usual has nothing to say, nor has one that is lost.
    """
    target = f"/v1/runs/{messages.RUN}"

    def told(**beat: Any) -> tuple[str, str]:
        if beat:
            served.post(f"{target}/heartbeat", messages.heartbeat(**beat))
        view = served.get("/v1/status").body
        assert not any(
            "llama-8b" in each for each in view["trouble"] if "not been heard" not in each
        )
        (run,) = view["runs"]
        return run["state"], run["waits_for"]

    served.register()
    served.clock.pass_s(600.0)
    assert told(phase="starting") == (
        "live",
        "no step since it was launched 10 min ago; the launch answered 0 s ago; phase: starting",
    )
    served.post(f"{target}/progress", messages.progress())
    assert told() == ("live", "")
    served.clock.pass_s(41 * 60.0 - 3.0)
    served.post(f"{target}/heartbeat", messages.heartbeat(phase="training"))
    served.clock.pass_s(3.0)
    assert told() == (
        "live",
        "last step 41 min ago; the launch answered 3 s ago; phase: training",
    )
    served.clock.pass_s(100.0)
    assert told() == ("lost", "")
    slow = {"seq": 2, "step": 20, "tokens": 2_000, "tokens_per_s": 100 / 600}
    served.post(f"{target}/progress", messages.progress(**slow))
    served.clock.pass_s(1500.0)
    assert told(phase="training") == ("live", "")


def test_a_run_that_leaves_no_checkpoint_is_told_once_and_until_one_is_saved(
    served: Served,
) -> None:
    """One sentence that ends in what to do, in a line that a screen bears."""
    served.register()
    why = "rank 1 could not write its part (OSError: \x1b[31m28)" + "x" * 1000
    served.post(f"/v1/runs/{messages.RUN}/progress", messages.progress(trouble=why))
    (said,) = [each for each in served.get("/v1/status").body["trouble"] if "rank 1" in each]
    assert said.startswith("llama-8b has no new checkpoint (rank 1 could not write its part (OSErr")
    assert said.endswith("its layout is not switched.")
    assert "\x1b" not in said
    assert len(said) < 700
    served.post(f"/v1/runs/{messages.RUN}/progress", messages.progress(seq=2))
    assert not [each for each in served.get("/v1/status").body["trouble"] if "rank 1" in each]


def test_without_a_journal_the_last_known_state_is_shown_as_such(served: Served) -> None:
    """The screen survives the database: last known runs with their age, and what is wrong."""
    served.register()
    served.get("/v1/status")
    (served.folder / "journal.db").rename(served.folder / "taken.db")
    served.clock.pass_s(30.0)
    view = served.get("/v1/status").body
    assert view["stale_s"] == 30.0
    assert view["runs"][0]["name"] == "llama-8b"
    assert view["journal"]["state"] == "unavailable"
    assert "is gone; put the file" in view["trouble"][0]
    assert "runs train on" in view["trouble"][0]
    assert served.get("/healthz").status == 200
    ready = served.get("/readyz")
    assert (ready.status, ready.body["kind"]) == (503, "unavailable")
    assert "is gone" in ready.body["error"]
    report = served.post(f"/v1/runs/{messages.RUN}/progress", messages.progress())
    assert (report.status, report.body["kind"]) == (503, "unavailable")


def test_a_crowd_of_reports_spares_a_journal_that_is_gone(served: Served) -> None:
    """In an outage one caller in two seconds tries; the others are answered from memory."""
    served.register()
    (served.folder / "journal.db").rename(served.folder / "taken.db")
    served.post(f"/v1/runs/{messages.RUN}/progress", messages.progress())
    (served.folder / "taken.db").rename(served.folder / "journal.db")
    assert served.post(f"/v1/runs/{messages.RUN}/progress", messages.progress()).status == 503
    served.clock.pass_s(2.5)
    assert served.post(f"/v1/runs/{messages.RUN}/progress", messages.progress()).status == 200


def test_readyz_tells_a_cycle_that_hangs(served: Served) -> None:
    """A cycle that does not turn is not ready, however well the server answers."""
    served.cycle.turn()
    assert served.get("/readyz").body["ok"] is True
    served.clock.pass_s(60.0)
    found = served.get("/readyz")
    assert found.status == 503
    assert "has not ended a turn for 60 s" in found.body["error"]


def test_the_story_of_a_run(served: Served) -> None:
    """Decisions, switches and transitions of one run, by name or by id."""
    served.register()
    decision = Decision(run=messages.RUN, action=Action.HOLD, kind="dwell", reason="Dwell.")
    served.journal.decisions.record([decision], now=served.clock.wall, epoch=1, mode=Mode.ACT)
    for name in ("llama-8b", messages.RUN):
        story = served.get(f"/v1/runs/{name}/why").body
        assert story["run"]["name"] == "llama-8b"
        assert story["decisions"][0]["reason"] == "Dwell."
        assert story["switches"] == []
    listed = served.get("/v1/decisions?run=llama-8b&limit=5").body["decisions"]
    assert listed[0]["kind"] == "dwell"
    assert listed[0]["slack_s"] is None
    assert served.get("/v1/runs").body["runs"][0]["run"] == messages.RUN
    assert served.get(f"/v1/runs/{messages.RUN}").body["catalogue"]["reference"] == "A"


def test_the_forecast_that_decisions_rest_on(served: Served) -> None:
    """The running slot as it was observed, then one issue, from whom and since when."""
    carbon(served, 212.0, 150.0, 118.0)
    view = served.get("/v1/carbon/forecast").body
    assert (view["rung"], view["source"]) == ("issued", "csv")
    assert view["sentence"] == "Decisions rest on an issued forecast."
    assert [each["quality"] for each in view["slots"]] == ["provisional", "forecast", "forecast"]
    assert [each["g_per_kwh"] for each in view["slots"]] == [212.0, 150.0, 118.0]
    assert view["slots"][1]["low_g_per_kwh"] is None
    assert view["skill"] == []


def test_carbon_now_and_history(served: Served) -> None:
    """The signal as it stands, and the intervals behind."""
    assert served.get("/v1/carbon/now").body["carbon"] is None
    assert served.get("/v1/carbon/history").body == {"signal": "", "points": []}
    carbon(served, 212.0, 150.0)
    assert served.get("/v1/carbon/now").body["carbon"]["g_per_kwh"] == 212.0
    history = served.get("/v1/carbon/history?hours=1").body
    assert [each["g_per_kwh"] for each in history["points"]] == [212.0]
    assert history["points"][0]["signal"] == history["signal"]


def test_events_are_listed(served: Served) -> None:
    """What happened beside decisions is read newest first."""
    served.journal.events.add("clock_step", "An hour forward.", served.clock.wall)
    (event,) = served.get("/v1/events").body["events"]
    assert (event["kind"], event["detail"]) == ("clock_step", "An hour forward.")


@pytest.mark.parametrize(
    ("heard_min", "read", "told"),
    [
        (1, ("G1", "G2"), "Nothing of its GPUs has been booked yet."),
        (9, ("G1",), "Nothing of its GPUs has been booked yet."),
        (9, ("G1", "G2"), "No process of it was seen on G1 and 1 more in 9.0 min"),
    ],
)
def test_a_run_without_a_process_on_its_gpus_says_that_they_are_booked_as_idle(
    served: Served, heard_min: float, read: tuple[str, ...], told: str
) -> None:
    """Once what is delivered late would have come; a GPU that nobody reads now may explain it."""
    served.register(gpus=("G1", "G2"), ranks=(0, 1), world_size=2)
    loop_facts = served.loop_facts
    power = loop_facts.settings.power.model_copy(update={"source": "nvml"})
    loop_facts.settings = loop_facts.settings.model_copy(update={"power": power})
    loop_facts.fleet = replace(
        loop_facts.fleet, gpus=GpusRead(known=frozenset({"G1", "G2"}), lately=frozenset(read))
    )
    (row,) = served.journal.runs.all(served.clock.wall)
    heard = row.incarnation_at + timedelta(minutes=heard_min)
    assert why_unread(loop_facts, replace(row, last_seen_at=heard)).startswith(told)
