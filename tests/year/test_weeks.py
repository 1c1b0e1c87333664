"""No gram is lost or counted twice: weeks with outages, failover, revisions and odd midnights.

The sum it is compared with is made of true power and true intensities, without the ledger's code
(benchmarks/year/oracle.py). The whole year: `python -m benchmarks.year`.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.year.judge import blindly, misheard, months, unexplained
from benchmarks.year.life import Life, lived
from benchmarks.year.run import HOUR, A, B, Run
from benchmarks.year.scenarios import clocks_change, month_end
from benchmarks.year.world import at
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.integrations.carbon.grid_server.grids import Measure
from wattmesh.policies.accounting.baseline import price_ug
from wattmesh.reconfig.switch import SwitchState

DAY = timedelta(days=1)
SPAN = (at("2026-02-26 00:00:00"), at("2026-02-27 00:00:00"))


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """The week in which a month ends in India; nobody is there at its midnight."""
    folder: Path = tmp_path_factory.mktemp("year")
    with lived(month_end(), folder) as found:
        yield found


def test_every_hour_of_both_scenarios_is_what_was_true(life: Life) -> None:
    """To the rounding of a row: through a failover and back, an outage, a gap and a revision."""
    assert life.checked.hours >= 120
    assert not life.checked.wrong, "\n".join(map(str, life.checked.wrong[:10]))
    assert life.checked.worst_ug < 10
    assert life.checked.estimated_hours == 4


def test_the_week_had_what_it_is_for(life: Life) -> None:
    """Rows told by a stand-in, estimated for good, and revised are all among those compared."""
    rows = life.rows(at("2026-02-24 00:00:00"), at("2026-03-01 00:00:00"))
    models = {row.model.partition(" ")[0] for row in rows}
    assert {"fallback", "settled:", ""} <= models
    assert any(row.first_carbon_ug != row.carbon_ug for row in rows)
    assert any(row.slot_end.minute == 30 for row in rows)
    assert {row.line for row in rows if row.scenario == "actual"} >= {"run", "idle"}


def test_holds_are_explained_and_months_close_right(life: Life) -> None:
    """Every hour a run trained has its decision; February is closed with what was true."""
    assert life.failures == []
    closed = life.simulated.journal.budgets.closed("2026-02", "Asia/Kolkata")
    assert closed is not None
    assert closed.end == at("2026-02-28 18:30:00")


def spoiled(life: Life, change: str) -> tuple[EmissionRow, ...]:
    """Give a day's rows, one of them dropped, doubled, or priced with another zone."""
    rows = list(life.rows(*SPAN))
    victim = next(row for row in rows if row.run == "lean" and row.slot_start.hour == 15)
    if change == "drop":
        rows.remove(victim)
    elif change == "double":
        rows.append(victim)
    else:
        grid = life.simulated.server.grid
        grams = grid.truth("DE", victim.slot_start, HOUR, Measure.DIRECT)
        price = round(1000 * grams)
        carbon_ug = price_ug(victim.energy_mj or 0, price, victim.pue_milli)
        other = replace(victim, carbon_ug=carbon_ug, g_milli_per_kwh=price)
        rows[rows.index(victim)] = other
    return tuple(rows)


@pytest.mark.parametrize("change", ["drop", "double", "other zone"])
def test_the_sum_catches_one_wrong_row(life: Life, change: str) -> None:
    """Sabotaged twins: a slot left out, counted twice, or priced with the wrong zone."""
    assert not life.judged(life.rows(*SPAN), SPAN).wrong
    found = life.judged(spoiled(life, change), SPAN).wrong
    assert {(each.run, each.hour.hour) for each in found} >= {("lean", 15)}


def test_a_missing_decision_is_caught(life: Life) -> None:
    """Sabotaged twin: decisions of half a day vanish; and one that says nothing."""
    scenario = life.scenario
    rows = life.decisions
    span, run = (scenario.start, scenario.end), life.simulated.cluster.runs[0]
    early = [row for row in rows if row.last_at < run.job.start + 3 * DAY]
    assert unexplained(early, run, span, scenario.step, scenario.down)
    mute = [replace(row, reason="") for row in rows]
    assert unexplained(mute, run, span, scenario.step, scenario.down)
    assert not unexplained(rows, run, span, scenario.step, scenario.down)


def test_months_of_a_place_follow_each_other() -> None:
    """The calendar the checks use: borders at local midnight, through both changes of clocks."""
    found = months(at("2026-01-15 00:00:00"), at("2027-01-15 00:00:00"), "Europe/Berlin")
    assert [end for _, _, end in found[:-1]] == [start for _, start, _ in found[1:]]
    assert found[3][:2] == ("2026-04", at("2026-03-31 22:00:00"))
    assert found[10][:2] == ("2026-11", at("2026-10-31 23:00:00"))


def test_a_run_that_changes_between_two_moments_is_caught() -> None:
    """What it truly drew is known only if everybody looks where its switch begins and ends."""
    job = clocks_change().jobs[2]
    run, hasty = Run(job), Run(job)
    for each in (run, hasty):
        each.go_on(job.start + HOUR)
        each.take("plan", "B")
    now = job.start + HOUR
    while now < job.start + 2 * HOUR:
        now = run.next_at(now)
        run.go_on(now)
    (move,) = run.moves
    assert move.end is SwitchState.ROLLED_BACK
    assert move.until - move.at == timedelta(minutes=2)
    with pytest.raises(AssertionError, match="half: changed by"):
        hasty.go_on(job.start + 2 * HOUR)


def test_clocks_change_while_the_provider_is_gone(tmp_path: Path) -> None:
    """Five days without the provider: holds, then all is restated as told.

    Meanwhile the daemon moves one run of its own accord and another as an operator asks, whose
    first switch fails; an agent is gone for a day, a GPU is never read, all draw less than they
    did, and the accounting signal is changed: no headline is above the true saving.
    """
    with lived(clocks_change(), tmp_path) as life:
        assert not life.checked.wrong, "\n".join(map(str, life.checked.wrong[:10]))
        assert life.failures == []
        assert life.savings == 2
        assert 0 < life.checked.dark_ug < life.checked.bound_ug
        assert {each.scenario for each in life.forgotten()} == {"dark"}  # a twin: no darkness
        twins = [{h: x * mg // 10 for h, mg in life.checked.price_mg.items()} for x in (1, 1000)]
        assert any(life.flattered(other)[0] for other in twins)  # the savings of other grids
        signals = {row.signal.split(":")[3] for row in life.rows(*life.scenario.whole)}
        assert signals == {"direct", "lifecycle"}
        decisions = life.decisions
        assert "stale_signal" in {row.kind for row in decisions}
        wrong = blindly(
            [replace(row, kind="at_target") for row in decisions], [life.scenario.dead[0]]
        )
        assert wrong  # the sabotaged twin: decisions that look at a grid nobody told
        holds = [row for row in decisions if row.action == "hold"]
        under_way = [replace(row, kind="switching") for row in holds]
        assert blindly(under_way, [life.scenario.dead[0]]) == []
        acting = [replace(row, action="switch") for row in under_way]
        assert blindly(acting, [life.scenario.dead[0]])  # and one that acts
        moved, half = life.simulated.cluster.runs[1:]
        told = life.simulated.journal.switches.history(moved.job.name)
        assert {row.requested_by for row in told} == {"policy"}
        assert {move.layout for move in moved.moves} == {A, B}
        assert [move.end for move in half.moves] == [SwitchState.ROLLED_BACK, SwitchState.CONFIRMED]
        half.moves[0] = replace(half.moves[0], end=SwitchState.CONFIRMED)
        moved.moves.pop()
        assert len(misheard(life.simulated.journal, (moved, half))) == 2  # told otherwise
        closed = life.simulated.journal.budgets.closed("2026-03", "Europe/Berlin")
        assert closed is not None
        assert closed.end == at("2026-03-31 22:00:00")
