"""The budget: a saving names its baseline, and is not told before it is settled."""

from datetime import timedelta
from typing import Any

from tests.cli import facts
from tests.cli.screens.test_screens import plain
from wattmesh.controller.accounting.accounts import ACTUAL, BASELINE
from wattmesh.controller.accounting.audit import Audit
from wattmesh.controller.accounting.budget import BudgetView, ClusterLine, RunBudget, SavedLine
from wattmesh.controller.accounting.budgets.spending import BurnLine, PeriodLine, SignalGrams
from wattmesh.controller.api.handlers.flagged import audit_json
from wattmesh.controller.cli.accounting import audit_screen, budget_screen
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.controller.views import as_json

SIGNAL = "neso:GB:average:direct:CO2"


def run(**changes: Any) -> RunBudget:
    """Give one run that saved."""
    values: dict[str, Any] = {
        "run": "r1",
        "name": "llama-8b",
        "state": "finished",
        "tokens": 2_000_000,
        "energy_j": 90_000.0,
        "carbon_g": 4.8,
        "unpriced_j": 0.0,
        "unobserved_s": 0.0,
        "upper_j": 0.0,
        "baseline": "A",
        "baseline_g": 5.9,
        "saved_g": 1.1,
        "settled": True,
        "bound_g": 4.6,
        "deadline": None,
        "finished_at": None,
        "qualities": {"measured": 4.8},
        "signal": SIGNAL,
    }
    return RunBudget(**values | changes)


def view(*runs: RunBudget, **changes: Any) -> dict[str, Any]:
    """Give the answer of `GET /v1/budget`."""
    line = ClusterLine(line="run", energy_j=90_000.0, carbon_g=4.8, unobserved_s=0.0)
    idle = ClusterLine(line="idle", energy_j=400.0, carbon_g=0.02, unobserved_s=3.0)
    settled = [each for each in runs if each.saved_g is not None]
    saved_g = sum(each.saved_g or 0.0 for each in settled)
    saved = SavedLine(
        signal=SIGNAL,
        saved_g=saved_g,
        high_g=sum(each.saved_high_g or each.saved_g or 0.0 for each in settled),
        better_point_g=0.0,
        carbon_aware_g=0.0,
        unsplit_g=saved_g,
        released_g=0.0,
        runs=len(settled),
        flags=tuple({flag for each in settled for flag in each.flags}),
    )
    values: dict[str, Any] = {
        "at": facts.NOW,
        "signal": SIGNAL,
        "boundary": "GPUs, as the power source measures them",
        "total": line,
        "lines": (idle, line),
        "runs": runs,
        "saved_g": saved_g if settled else 0.0,
        "saved": (saved,) if settled else (),
        "unsettled": tuple(each.name for each in runs if each.saved_g is None),
        "simulated": (),
    }
    answer: dict[str, Any] = as_json(BudgetView(**values | changes))
    return answer


def test_a_saving_names_baseline_and_signal() -> None:
    """Spent, saved with its share, the baseline, and how much of the best possible it was."""
    text = plain(budget_screen.screen(view(run())))
    assert "in all 4.8 g for 90 kJ   neso:GB:average:direct:CO2; GPUs" in text
    assert "saved  1.1 g against the points the runs were submitted at (19 %)" in text
    assert "idle 20 mg (400 J) · unobserved 3 s of GPU time" in text
    assert "baseline A" in text
    assert "85 %" in text


def test_joules_without_a_price_are_not_zero_grams() -> None:
    """Where no signal is set, or none has come yet, what was spent is not known."""
    line = ClusterLine(
        line="run", energy_j=90_000.0, carbon_g=0.0, unobserved_s=0.0, unpriced_j=90_000.0
    )
    dark = run(carbon_g=0.0, unpriced_j=90_000.0, saved_g=None, settled=False)
    text = plain(budget_screen.screen(view(dark, total=line, lines=(line,), signal="")))
    assert "in all - for 90 kJ (90 kJ have no grams yet)   no signal is set" in text
    assert " 0 g" not in text


def test_a_run_of_which_nothing_was_read_shows_no_figure_and_why() -> None:
    """Unknown is never zero: neither 0 g nor 0 J."""
    why = "Nobody reads GPU-1 of the GPUs that it registered."
    blind = run(energy_j=None, carbon_g=None, unread=why, saved_g=None, settled=False)
    shown = plain(budget_screen.screen(view(blind)))
    line = next(each for each in shown.splitlines() if each.startswith("llama-8b"))
    assert line.split()[1] == "-"
    assert why.rstrip(".") in shown


def test_an_unsettled_saving_is_not_told() -> None:
    """A run whose baseline is behind shows a dash, is named, and adds nothing to the sum."""
    behind = run(saved_g=None, settled=False, bound_g=None, unpriced_j=1234.0)
    text = plain(budget_screen.screen(view(behind)))
    assert "saved  nothing is settled yet\n       not settled: llama-8b" in text
    assert "not settled, 1.23 kJ have no grams yet" in text


def test_simulated_and_unobserved_say_so() -> None:
    """Grams of another quality carry the word; unobserved time carries its upper estimate."""
    seen = run(
        qualities={"measured": 3.8, "provisional+simulated": 1.0},
        flags=("provisional", "simulated"),
        unobserved_s=12.0,
        upper_j=8400.0,
    )
    text = plain(budget_screen.screen(view(seen, simulated=("power_w",))))
    assert "llama-8b  4.8 g prov+sim" in text
    assert "1 g prov+sim of it" in text
    assert "12 s unobserved (at most 8.4 kJ est+prov+sim more)" in text
    assert "simulated: power_w" in text
    assert "est: estimated · prov: provisional · sim: simulated" in text


def test_a_loss_of_grams_is_shown_as_one() -> None:
    """The sabotaged twin: a run that emitted more shows a negative saving."""
    worse = run(carbon_g=6.5, saved_g=-0.6)
    text = plain(budget_screen.screen(view(worse)))
    assert "-600 mg" in text
    assert "(-10 %)" in text


def test_the_audit_shows_every_row_and_the_rule() -> None:
    """Both ledgers slot by slot, the sums in micrograms, and the formulas."""
    row = EmissionRow(
        scenario=ACTUAL,
        run="r1",
        gpu_uuid="GPU-1",
        slot_start=facts.NOW,
        slot_end=facts.NOW,
        signal="neso:GB:average:direct:CO2",
        quality="measured",
        energy_mj=2_925_962,
        g_milli_per_kwh=62_000,
        carbon_ug=50_392,
        first_carbon_ug=50_392,
    )
    audit = Audit(
        run="r1",
        name="llama-8b",
        tokens=1550,
        baseline="A",
        signal="neso:GB:average:direct:CO2",
        actual=(row,),
        reference=(EmissionRow(**{**_fields(row), "scenario": BASELINE, "gpu_uuid": ""}),),
        energy=(),
        actual_ug=50_392,
        reference_ug=60_000,
        saved_ug=9_608,
        settled=True,
        rule="saved_ug = reference_ug - actual_ug",
    )
    text = plain(audit_screen.screen(audit_json(audit)))
    assert text.count("2,925,962") == 2
    assert "saved     9,608 ug" in text
    assert "saved_ug = reference_ug - actual_ug" in text


def _fields(row: EmissionRow) -> dict[str, Any]:
    """Give a row's fields."""
    return {name: getattr(row, name) for name in EmissionRow.__dataclass_fields__}


def period(**changes: Any) -> PeriodLine:
    """Give the cluster's budget on its way, in its twentieth day."""
    values: dict[str, Any] = {
        "name": "cluster",
        "period": "2026-11",
        "start": facts.NOW - timedelta(days=19.6),
        "end": facts.NOW + timedelta(days=10.4),
        "limit_g": 9.0e6,
        "spent_g": 3.41e6,
        "unpriced_j": 410.0,
        "expected_g": 3.62e6,
        "burn": 0.942,
        "on_course_g": 8.4e6,
        "restated_g": 2.0e4,
        "alert": "",
        "low_g": 8.0e6,
        "high_g": 8.9e6,
        "residual_g": 5.59e6,
        "signal": SIGNAL,
        "burns": (BurnLine(hours=6.0, ratio=0.9), BurnLine(hours=168.0, ratio=None)),
        "plan": "made at the start; rests on 28 days of neso:GB:average:direct:CO2",
    }
    return PeriodLine(**values | changes)


def test_a_budget_says_where_it_stands_in_its_period() -> None:
    """Spent of the limit, what the plan has by now, its course with a band, its burn, its plan."""
    text = plain(budget_screen.screen(view(run(), periods=(period(),))))
    assert "November 2026, cluster, location-based average (GB, neso)   20 of 30 days gone" in text
    assert "spent      3.41 t of 9 t   ███████▋░░░░░░░░░░░░  38 %" in text
    assert "expected by now 3.62 t   left 5.59 t" in text
    course = "on course  8.4 t est by its end (80 %: 8 t est - 8.9 t est)   burn 0.94x · 6 h 0.9x"
    assert f"{course} · no alert" in text
    assert "beside     restated +20 kg since first reported · 410 J have no grams yet" in text
    assert "plan       made at the start; rests on 28 days" in text


def test_an_alert_says_what_to_do_and_when_the_limit_ends() -> None:
    """What is not known is a dash; an exhausted budget says since when."""
    changes: dict[str, Any] = {"on_course_g": None, "low_g": None, "high_g": None, "burns": ()}
    late = period(
        alert="budget cluster: 9.2 t of 9 t are spent; raise budget.cluster.grams",
        urgency="exhausted",
        spent_g=9.2e6,
        residual_g=-2.0e5,
        exhausted_at=facts.NOW - timedelta(days=1),
        burn=None,
        **changes,
    )
    text = plain(budget_screen.screen(view(run(), periods=(late,))))
    assert "on course  - by its end, used up since 19 Nov 14:02   burn - · exhausted alert" in text
    assert "budget cluster: 9.2 t of 9 t are spent; raise budget.cluster.grams." in text


def test_lines_that_are_no_run_are_called_as_people_call_them() -> None:
    """Idle, released, unattributed: each with its grams and joules."""
    given_back = ClusterLine(
        line="idle_after_release", energy_j=800.0, carbon_g=0.05, unobserved_s=0.0
    )
    text = plain(budget_screen.screen(view(run(), lines=(given_back,))))
    assert "beside released 50 mg (800 J)" in text


DARK = ("estimated",)


def test_a_dark_saving_is_told_by_its_lower_end() -> None:
    """At least so much, up to so much, and how long nobody read: in the headline and in the row."""
    band = run(
        saved_g=0.19,
        saved_high_g=0.25,
        unobserved_s=10_800.0,
        upper_j=4.0e5,
        carbon=(SignalGrams(signal=SIGNAL, carbon_g=4.8, upper_g=0.06, flags=DARK),),
        upper_g=0.06,
        flags=DARK,
    )
    text = plain(budget_screen.screen(view(band)))
    assert (
        "saved  at least 190 mg est (up to 250 mg est: 3 h of GPU time were not read) against the "
        "points the runs were submitted at (3 %)" in text
    )
    assert "saved at least that, up to 250 mg est" in text
    assert "3 h unobserved (at most 0.111 kWh est, 60 mg est more)" in text
    sure = plain(budget_screen.screen(view(run(saved_g=0.19, saved_high_g=0.19))))
    assert "saved  190 mg against" in sure
    assert "up to" not in sure


def test_a_saving_is_parted_and_only_its_last_part_is_carbon_aware() -> None:
    """What a better single point had saved stands apart; given-back GPUs are taken away."""
    parted = run(best_single="B", better_point_g=0.8, carbon_aware_g=0.3)
    line = SavedLine(
        signal=SIGNAL,
        saved_g=0.9,
        high_g=0.9,
        better_point_g=0.8,
        carbon_aware_g=0.1,
        unsplit_g=0.0,
        released_g=0.2,
        runs=1,
    )
    text = plain(budget_screen.screen(view(parted, saved=(line,))))
    assert "of it: better single point 800 mg, carbon-aware 100 mg" in text
    assert "taken from it: 200 mg of GPUs that were given back and stood idle" in text
    assert "better single point (B) 800 mg, carbon-aware 300 mg" in text
    unknown = run(split_unsettled="no best single point was chosen when it registered")
    text = plain(budget_screen.screen(view(unknown)))
    assert "not parted: no best single point was chosen when it registered" in text
    assert "not parted 1.1 g" in text
    assert "carbon-aware 0 g" in text


def test_a_run_without_a_saving_says_why() -> None:
    """Nothing was read of it, its baseline is behind: in its row, and it is named above."""
    unread = run(saved_g=None, settled=False, unsettled="none of its GPUs was ever read")
    text = plain(budget_screen.screen(view(unread)))
    assert "not settled: none of its GPUs was ever read" in text
    assert "not settled: llama-8b" in text


def test_a_budget_with_darkness_says_how_much_it_may_be() -> None:
    """Spent, at most, and how long nobody read; alerts burn on the latter."""
    dark = period(spent_g=0.44e6, upper_g=28.0e6, unobserved_s=7200.0, unbounded_j=5.0)
    text = plain(budget_screen.screen(view(run(), periods=(dark,))))
    assert "spent      440 kg of 9 t" in text
    assert "at most    28.4 t est, for 2 h of GPU time were not read" in text
    assert "(5 J est of it have no grams yet)" in text
    assert "at most" not in plain(budget_screen.screen(view(run(), periods=(period(),))))
