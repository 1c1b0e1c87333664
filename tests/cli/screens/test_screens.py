"""The screens: the answer first, unknown and simulated said, red only what needs an act."""

from collections.abc import Iterable
from datetime import timedelta

import pytest
from rich.text import Text

from tests.cli import facts
from wattmesh.controller.cli.doctor import checks, doctor, findings
from wattmesh.controller.cli.output import BAD, folded
from wattmesh.controller.cli.runs import status_screen
from wattmesh.controller.cli.runs.why_screen import around, brief, history_entries, over
from wattmesh.controller.cli.tables import Column, table


def plain(lines: Iterable[Text | str]) -> str:
    """Give a screen without its colours."""
    return "\n".join(str(line) for line in lines)


def red(lines: Iterable[Text | str]) -> list[str]:
    """Give what is red in a screen."""
    return [
        line.plain[span.start : span.end]
        for line in lines
        if isinstance(line, Text)
        for span in line.spans
        if span.style == BAD
    ]


def test_columns_line_up() -> None:
    """Numbers end in one column, words begin in one, and no line ends in blanks."""
    lines = table(
        (Column(title="RUN"), Column(title="STEP", right=True), Column(title="STATE")),
        (("a", "1", "x"), ("long", "1,000", "y")),
    )
    assert [str(each) for each in lines] == [
        "RUN    STEP  STATE",
        "a         1  x",
        "long  1,000  y",
    ]


def test_status_of_a_daemon_that_is_well() -> None:
    """Role, grid, power, run and reason are there, and nothing is red."""
    screen = status_screen.screen(facts.status())
    text = plain(screen)
    assert "acting · leader on head-1 · 14:02:10 UTC · cycle 4 s ago, 38 ms" in text
    assert "212 g/kWh  average·direct  neso, 6 min old" in text
    assert "low 118 at 16:02" in text
    assert "GPUs 41.2 kW · 64 of 64 read · unobserved 0.0 %" in text
    assert "llama-8b: Staying at C" in text
    assert "simulated" not in text
    assert red(screen) == []


@pytest.mark.parametrize(("columns", "spared"), [(80, True), (200, False)])
def test_status_fits_the_screen(columns: int, spared: bool) -> None:
    """No line is wider, what has no room is named, and a state is told whole below its row."""
    frozen = facts.run(name="moe-16b", activity="frozen", frozen="uid 1000: we look at it together")
    moving = facts.run(name="vision-large", activity="switching", switch=facts.switching())
    view = facts.status(runs=(facts.run(), frozen, moving), trouble=("A sentence. " * 20,))
    lines = [
        part
        for line in status_screen.screen(view, columns)
        for part in folded(line if isinstance(line, Text) else Text(line), columns)
    ]
    assert max(each.cell_len for each in lines) <= columns
    text = "\n".join(each.plain for each in lines)
    assert ("too narrow for J/TOKEN, CLOCK, TOKENS/S, LAYOUT" in text) is spared
    assert ("1305 MHz" in text) is not spared
    assert "frozen: uid 1000: we look at …" in text
    assert "moe-16b: Frozen: uid 1000: we look at it together." in text
    assert "switching to B: loaded 5 of 7" in text
    assert " ".join(text.split()).count("A sentence.") == 20


def test_trouble_comes_right_after_the_head_and_is_red() -> None:
    """What needs a human stands in the second line, and it alone is red."""
    sentence = "Two switches failed; look at `wattmesh why llama-8b`, then thaw it."
    screen = status_screen.screen(facts.status(trouble=(sentence,)))
    assert str(screen[1]) == f"! {sentence}"
    assert red(screen) == ["! ", sentence]


def test_simulated_values_say_so_where_they_stand() -> None:
    """Simulated power, a replayed signal and the summary all carry the word."""
    view = facts.status(
        power=facts.power(source="simulated", simulated=True, flags=("simulated",)),
        carbon=facts.carbon(simulated=True),
        simulated=("GPU power",),
    )
    text = plain(status_screen.screen(view))
    assert "41.2 kW sim" in text
    assert "sim: simulated" in text
    assert "replayed recording" in text
    assert "simulated: GPU power" in text


def test_unknown_values_are_not_zero() -> None:
    """A signal never heard, power not read and a run at no point show words or dashes."""
    view = facts.status(
        carbon=facts.carbon(
            g_per_kwh=None, quality="", age_s=None, trouble="neso has not answered yet.",
            forecast=(), low=None,
        ),
        power=facts.power(source="", total_w=None, gpus=0, expected=0, age_s=None),
        runs=(facts.run(point="", j_per_token=None, tokens_per_s=None, clock_mhz=None),),
    )  # fmt: skip
    text = plain(status_screen.screen(view))
    assert "unknown" in text
    assert "never heard" in text
    assert "neso has not answered yet." not in text
    assert "neso has not answered yet." in plain(status_screen.grid(view))
    assert "not read: no power source is set" in text


@pytest.mark.parametrize(("rung", "words"), [("profile", "ahead: our profile"), ("issued", "")])
def test_a_signal_says_when_the_hours_ahead_are_our_own(rung: str, words: str) -> None:
    """A provider's forecast is the rule and not worth a word."""
    line = facts.carbon(rung=rung)
    text = plain(status_screen.grid(facts.status(carbon=line, accounting=line)))
    assert ("our profile" in text) is bool(words)
    assert words in text


def test_a_switch_under_way_shows_how_far_it_is() -> None:
    """The STATE column says where a switch stands and of how many steps; parked GPUs are named."""
    run = facts.run(switch=facts.switching(), ranks=2, world_size=4)
    text = plain(status_screen.screen(facts.status(runs=(run,))))
    assert "switching to B: loaded 5 of 7" in text
    assert "2 +2 parked" in text


def test_a_run_that_takes_no_step_says_what_it_waits_for() -> None:
    """Before its newest reason, and nothing of it is red: a long step needs nobody."""
    waits = "last step 41 min ago; the launch answered 3 s ago; phase: training"
    screen = status_screen.screen(facts.status(runs=(facts.run(waits_for=waits),)))
    text = plain(screen)
    assert text.index(f"llama-8b: L{waits[1:]}.") < text.index("llama-8b: Staying at C")
    assert red(screen) == []


def test_two_signals_are_never_merged() -> None:
    """Where the decision signal is not the accounting one, both stand there by their use."""
    other = facts.carbon(signal="csv:DE:marginal:direct:CO2", provider="csv", kind="marginal")
    text = plain(status_screen.screen(facts.status(carbon=other)))
    assert "decide GB" in text
    assert "book   GB" in text


def test_standby_and_frozen_are_said_first() -> None:
    """The first line says who leads instead, and what is frozen and why."""
    standby = facts.status(leading=False, leader="head-2", epoch=None)
    assert "standing by on head-1, head-2 leads" in str(status_screen.screen(standby)[0])
    cut_off = facts.status(leading=False, leader="head-1", epoch=4)
    assert "led on head-1 until its term ran out" in str(status_screen.screen(cut_off)[0])
    frozen = facts.status(frozen="maintenance")
    assert "frozen (maintenance)" in str(status_screen.screen(frozen)[0])


def test_old_rows_are_said_to_be_old() -> None:
    """While the journal does not answer, the first line says how old the runs are."""
    assert "last known 2 min ago" in str(status_screen.screen(facts.status(stale_s=120.0))[0])


def test_no_run_says_how_to_get_one() -> None:
    """An empty table is a sentence with the next step."""
    assert "wattmesh.observe" in plain(status_screen.screen(facts.status(runs=())))


def test_the_story_tells_a_switch_once_and_with_what_it_took() -> None:
    """A decision that became a switch is told by the switch: reason, time, probe, prediction."""
    at = facts.switch_row()["created_at"]
    ordering = facts.decision(action="switch", target="C", current="A", first_at=at, last_at=at)
    entries = history_entries([facts.decision(), ordering], [facts.switch_row()])
    text = plain(line for entry in entries for line in entry.lines)
    assert len(entries) == 2
    assert text.splitlines()[0].startswith("14:02:10  held    C -> C")
    assert "confirmed in 1.9 s (in place), probe loss equal to 3e-7" in text
    assert "expected to save 14.2 kg est, to cost 400 g est" in text


def test_the_story_tells_sleep_and_waking_by_their_own_words() -> None:
    """Who holds the next launch stands beside how long it took; the decision is not told again."""
    row = facts.switch_row(
        from_point="A",
        to_point="paused",
        order={"mode": "suspend"},
        evidence={"total_s": 12.0},
        reason="suspending A (dp2 on 2 GPUs) until 06:00 UTC at the latest: the grid is dirty.",
    )
    steps = [{"state": "stopping", "detail": "the next launch is held by Slurm job 4711"}]
    at = row["created_at"]
    sleep = facts.decision(action="suspend", target="paused", first_at=at, last_at=at)
    (entry,) = history_entries([sleep], [row], {row["plan"]: steps})
    text = plain(entry.lines)
    assert "suspend A -> paused" in text
    assert "confirmed in 12 s (the next launch is held by Slurm job 4711)" in text
    woken = facts.switch_row(from_point="paused", to_point="A", order={"mode": "resume"})
    assert "resume  paused -> A" in plain(history_entries([], [woken])[0].lines)


def test_advice_that_nobody_followed_stays_in_the_story() -> None:
    """A decision to switch without a switch is shown as what would have been done."""
    entries = history_entries([facts.decision(action="switch", target="A", mode="advise")], [])
    assert "would" in plain(entries[0].lines)


def test_a_failed_switch_says_why() -> None:
    """A switch that was rolled back is shown with its detail, never as done."""
    row = facts.switch_row(state="rolled_back", detail="rank 2 did not answer in 30 s")
    text = plain(history_entries([], [row])[0].lines)
    assert "rolled back" in text
    assert "rank 2 did not answer in 30 s" in text


def test_runs_that_train_come_first_and_a_sentence_stands_once() -> None:
    """However many share it: on a crowded screen nothing is read twice."""
    over = facts.run(
        name="ended-run", state="finished", activity="finished", ended="done", sentence=""
    )
    many = [facts.run(name=f"run-{each}", sentence="Only observed.") for each in range(60)]
    text = plain(status_screen.screen(facts.status(runs=(over, *many))))
    assert text.index("run-0 ") < text.index("run-59") < text.index("ended-run")
    assert "run-0, run-1, run-2, run-3, run-4 and 55 more: Only observed." in text
    assert text.count("Only observed.") == 1
    many = [facts.run(name=n, sentence=f"Name one as runs.{n}.catalogue.") for n in ("a", "b")]
    text = plain(status_screen.screen(facts.status(runs=many)))
    assert "a, b: Name one as runs.NAME.catalogue." in text
    text = plain(status_screen.screen(facts.status(runs=many[:1])))
    assert "a: Name one as runs.a.catalogue." in text


def test_a_long_name_leaves_room_for_its_state() -> None:
    """In a terminal it is cut in the middle, for its end tells it from others; a pipe has it."""
    names = [f"a-very-long-name-of-some-run-{'x' * 30}-{each:02d}" for each in range(2)]
    view = facts.status(runs=[facts.run(name=name) for name in names])
    for columns in (60, 80):
        rows = [str(line) for line in status_screen.screen(view, columns) if "holding" in str(line)]
        assert all(len(row) <= columns for row in rows)
        assert [row.split()[0][:3] + row.split()[0][-3:] for row in rows] == ["a-v-00", "a-v-01"]
    assert all(name in plain(status_screen.screen(view)) for name in names)


@pytest.mark.parametrize(
    ("state", "ended", "said"),
    [
        ("lost", "failed: KeyError('x')", "llama-8b: failed: KeyError('x'), last heard 5 min ago"),
        ("lost", "", "llama-8b: lost, last heard 5 min ago at step 181,200"),
        ("live", "", ""),
    ],
)
def test_a_story_begins_with_its_end(state: str, ended: str, said: str) -> None:
    """`why` says how a run ended, and that it is lost where nobody said so."""
    run = {"name": "llama-8b", "state": state, "ended": ended, "last_seen_s": 300, "step": 181_200}
    assert plain(over(run)).startswith(said)
    assert bool(over(run)) == bool(said)


def test_a_switch_that_went_on_by_restart_says_so_and_why() -> None:
    """It was ordered in place, arrived, and is not told as one that nothing kept in memory."""
    row = facts.switch_row(state="confirmed", detail="33% is held by `KEPT` (train.py:14)")
    steps = [{"state": "stopping", "detail": row["detail"]}, {"state": "confirmed", "detail": ""}]
    text = plain(history_entries([], [row], {row["plan"]: steps})[0].lines)
    assert "(restart, ordered in place: 33% is held by `KEPT` (train.py:14))" in text
    text = plain(history_entries([], [row], {row["plan"]: steps[1:]})[0].lines)
    assert "(in place)" in text
    assert "KEPT" not in text


def test_the_story_around_a_time() -> None:
    """`--at` shows what held then and what came right before it."""
    hours = [facts.NOW - timedelta(hours=each) for each in range(4)]
    rows = [facts.decision(first_at=at.isoformat(), last_at=at.isoformat()) for at in hours]
    kept = around(history_entries(rows, []), facts.NOW - timedelta(hours=1, minutes=-5))
    assert [entry.at for entry in kept] == [hours[1], hours[2]]


def test_reasons_of_one_cycle_are_left_out_but_counted() -> None:
    """A hold that one cycle gave is noise, unless it is the newest; switches always stay."""
    minute = timedelta(minutes=1)
    rows = [
        facts.decision(
            first_at=(facts.NOW - index * minute).isoformat(),
            last_at=(facts.NOW - index * minute).isoformat(),
            count=count,
        )
        for index, count in enumerate((1, 1, 7, 1))
    ]
    kept, left_out = brief(history_entries(rows, [facts.switch_row()]))
    assert [entry.at for entry in kept[:2]] == [facts.NOW, facts.NOW - 2 * minute]
    assert (len(kept), left_out) == (3, 2)


def test_doctor_says_what_to_do() -> None:
    """A problem is red and ends in its next step; what is ok has none."""
    found = [findings.ok("disk", "9 GiB free"), findings.problem("clock", "off", "see it")]
    lines = doctor.screen(found)
    assert "off -> see it" in plain(lines)
    assert red(lines) == ["problem"]


@pytest.mark.parametrize(
    ("line", "trouble", "verdict"),
    [
        ({"trouble": "static: 200 g/kWh is a static number."}, [], "ok"),
        ({"trouble": "neso has not answered yet.", "age_s": None}, [], "ok"),
        ({"trouble": "neso gives no value."}, ["neso gives no value. Every run holds."], "problem"),
        ({"trouble": ""}, ["neso refuses to answer: the key. Mend it."], "problem"),
    ],
)
def test_doctor_calls_a_signal_what_the_daemon_calls_it(
    line: dict[str, object], trouble: list[str], verdict: str
) -> None:
    """One place decides what is amiss; and it is said once."""
    signal = {"provider": "neso", "signal": "neso:GB:average:direct:CO2", "age_s": 60.0, **line}
    power = {"trouble": "", "gpus": 0, "expected": 0, "source": "", "simulated": False}
    view = {"carbon": signal, "accounting": signal, "power": power, "trouble": trouble}
    (found,) = checks._of_status(view)
    assert (found.check, found.verdict) == ("grid signal", verdict)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"activity": "lost", "frozen": "two failed"}, "lost, last heard 5 min ago, frozen"),
        ({"activity": "lost"}, "lost, last heard 5 min ago"),
        ({"activity": "stopped", "frozen": "look"}, "stopped, last heard 5 min ago"),
        ({"activity": "failed", "ended": "failed: KeyError('x')"}, "failed: KeyError('x')"),
        ({"activity": "retired", "frozen": "look", "ended": "retired: by hand"}, "retired"),
        ({"activity": "finished", "frozen": "look", "ended": "done"}, "finished"),
        ({"activity": "frozen", "frozen": "look"}, "frozen: look"),
        ({"activity": "holding"}, "holding"),
    ],
)
def test_a_freeze_hides_no_end(run: dict[str, str], said: str) -> None:
    """Who is lost, or said how it ended, is told so, frozen or not."""
    calm = {"switch": None, "frozen": "", "last_seen_s": 300.0, "ordered_point": "", "ended": ""}
    assert status_screen._state({**calm, **run, "state": "lost"}).plain == said
