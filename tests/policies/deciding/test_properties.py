"""What holds of every decision, whatever is observed."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.builders.observations import HOUR, NOW, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import (
    Action,
    Decision,
    Mode,
    Observation,
    PolicySettings,
    SwitchView,
)
from wattmesh.policies.hull import lower_hull
from wattmesh.policies.isolation import UNDECIDABLE
from wattmesh.policies.menu import menu
from wattmesh.policies.rules.decide import decide
from wattmesh.reconfig.catalogue import Catalogue, Equivalence, Evidence, Release, SwitchCost

ROOT = Path(__file__).parents[3]
FOR_GRAMS = {"carbon", "energy", "pace"}
GRAMS = st.floats(1.0, 900.0)


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    """Up to five points of every kind of evidence, on 1 to 4 GPUs."""
    points = [
        point(
            f"p{gpus}",
            gpus,
            draw(st.floats(50.0, 2000.0)),
            draw(st.floats(50.0, 3000.0)),
            evidence=draw(st.sampled_from([Evidence.VALIDATED] * 4 + [Evidence.MEASURED])),
            equivalence=draw(st.sampled_from([Equivalence.NUMERICAL] * 4 + [Equivalence.NONE])),
        )
        for gpus in draw(st.lists(st.integers(1, 5), min_size=1, max_size=5, unique=True))
    ]
    return catalogue(
        *points,
        release=draw(st.sampled_from(list(Release))),
        idle_power_w_per_gpu=draw(st.floats(0.0, 200.0)),
        switch=SwitchCost(
            layout_s=draw(st.floats(0.1, 600.0)), layout_energy_j=draw(st.floats(0.0, 1e6))
        ),
    )


@st.composite
def observations(
    draw: st.DrawFn, grid: st.SearchStrategy[list[float]] | None = None
) -> Observation:
    """A run in any state, under any grid."""
    known = draw(catalogues())
    current = draw(st.sampled_from([*known.points, None]))
    any_grid = st.lists(GRAMS, min_size=1, max_size=30)
    values = draw(any_grid if grid is None else grid)
    fastest = max(each.tokens_per_s for each in known.points)
    total = draw(st.sampled_from([1_000, 1_000_000, 40_000_000]))
    alone = timedelta(seconds=total / fastest)
    seen = run(
        catalogue=known,
        current=current,
        layout=current.layout if current else known.points[0].layout,
        tokens=draw(st.integers(0, total) | st.just(0)),
        tokens_total=total,
        deadline=NOW + draw(st.floats(-0.1, 1.0) | st.floats(1.0, 4.0)) * alone,
        tokens_per_s=draw(st.none() | st.floats(0.0, 3000.0)),
        since_switch_s=draw(st.none() | st.floats(0.0, 20_000.0)),
        failed_switches=draw(st.integers(0, 2)),
        switches_today=draw(st.integers(0, 7)),
        ordered_point=draw(st.sampled_from(["", "", "", "p1", "p2", "zz"])),
        frozen=draw(st.sampled_from(["", "", "", "two\nlines. "])),
        open_switch=draw(
            st.sampled_from([None, None, SwitchView(target="p1", state="x", age_s=1.0)])
        ),
    )
    return observation(
        seen,
        grid=slots(values, seconds=draw(st.sampled_from([1.5, 1800.0, HOUR]))),
        policy=PolicySettings(dwell_s=draw(st.sampled_from([0.0, 3.0, 3600.0])), gain_factor=1.0),
    )


def free(seen: Observation) -> Observation:
    """The same points and grid, with time to spare and nothing in the way of a choice."""
    (view,) = seen.runs
    assert view.catalogue is not None
    points = menu(view, seen.policy) or view.catalogue.points
    seconds = 1.5 * 4e7 / max(each.tokens_per_s for each in points)
    values = [slot.g_per_kwh for slot in seen.carbon.slots]
    quiet = replace(
        view,
        current=view.current or points[0],
        tokens=0,
        tokens_total=40_000_000,
        tokens_per_s=None,
        boundary_every=10,
        deadline=NOW + timedelta(seconds=seconds),
        frozen="",
        open_switch=None,
        ordered_point="",
        failed_switches=0,
        switches_today=0,
        since_switch_s=None,
    )
    grid = slots(values, seconds=seconds / len(values))
    return replace(seen, runs=(quiet,), carbon=replace(seen.carbon, slots=grid))


def gist(decisions: Sequence[Decision]) -> list[tuple[str, str, str]]:
    """What is done and for what kind of reason."""
    return [(each.action, each.kind, each.target) for each in decisions]


@given(observations())
def test_every_reason_is_one_sentence_with_numbers_that_are_numbers(seen: Observation) -> None:
    """One line, a period at its end, nothing infinite; and the same decision when asked again."""
    decisions = decide(seen)
    assert decide(seen) == decisions
    for each in (*decisions, *decide(free(seen))):
        assert re.fullmatch(r"[a-z][^\n]*[^.\s]\.", each.reason), each.reason
        assert not re.search(r"\b(nan|inf|None)\b", each.reason), each.reason
        assert each.kind in documented_kinds()
        assert each.action in (Action.HOLD, Action.SWITCH, Action.CLOCK, Action.FREEZE)
        for figure in (each.predicted_g, each.switch_cost_g, each.price_mu, each.slack_s):
            assert figure is None or math.isfinite(figure)


@given(observations())
def test_only_points_on_the_menu_are_gone_to_and_only_useful_ones_for_grams(
    seen: Observation,
) -> None:
    """Nobody validated means nobody goes; above the hull means not by our own choice."""
    for each in (*decide(seen), *decide(free(seen))):
        if each.action is not Action.SWITCH:
            continue
        (view,) = seen.runs
        assert view.catalogue is not None
        points = menu(view, seen.policy)
        assert each.target in {choice.id for choice in points}
        if each.kind in FOR_GRAMS:  # the guard takes the fastest that it is sure to reach
            hull = lower_hull(view.catalogue, points, 4)
            assert each.target in {vertex.point.id for vertex in hull.vertices}


@given(observations(), st.sampled_from(["gone.", "HTTP 503"]))
def test_a_stale_signal_never_moves_a_run_for_grams(seen: Observation, trouble: str) -> None:
    """Hold, but for operators and deadlines."""
    for each in (seen, free(seen)):
        stale = replace(each, carbon=replace(each.carbon, trouble=trouble))
        assert not FOR_GRAMS & {decision.kind for decision in decide(stale)}


@given(observations(GRAMS.flatmap(lambda g: st.integers(1, 30).map(lambda n: [g] * n))))
def test_a_grid_that_never_changes_never_moves_a_run_for_carbon(seen: Observation) -> None:
    """A better point or the deadline may, and are called so."""
    assert "carbon" not in {each.kind for each in decide(free(seen))}


@given(observations(), st.sampled_from([0.25, 3.0, 1024.0]))
def test_only_the_shape_of_the_grid_matters(seen: Observation, factor: float) -> None:
    """Scaling every intensity changes no decision."""
    plain = free(seen)
    higher = tuple(replace(slot, g_per_kwh=factor * slot.g_per_kwh) for slot in plain.carbon.slots)
    scaled = replace(plain, carbon=replace(plain.carbon, slots=higher))
    assert gist(decide(scaled)) == gist(decide(plain))


@given(observations())
def test_decisions_do_not_depend_on_the_scale_of_time(seen: Observation) -> None:
    """A day in a minute and a day in a day are decided alike."""
    assert gist(decide(slower(free(seen)))) == gist(decide(free(seen)))


def slower(seen: Observation) -> Observation:
    """The same with every duration 64 times as long, but for the day of the forecast."""
    factor = 64

    def later(span: timedelta) -> timedelta:
        return factor * span

    known = seen.runs[0].catalogue
    assert known is not None
    switch = replace(
        known.switch,
        layout_s=factor * known.switch.layout_s,
        layout_energy_j=factor * known.switch.layout_energy_j,
    )
    deadline = seen.runs[0].deadline
    assert deadline is not None
    view = replace(
        seen.runs[0],
        catalogue=replace(known, switch=switch),
        tokens=factor * seen.runs[0].tokens,
        tokens_total=factor * seen.runs[0].tokens_total,
        boundary_every=factor * seen.runs[0].boundary_every,
        deadline=NOW + later(deadline - NOW),
        started_at=NOW + later(seen.runs[0].started_at - NOW),
    )
    longer = tuple(
        replace(slot, start=NOW + later(slot.start - NOW), end=NOW + later(slot.end - NOW))
        for slot in seen.carbon.slots
    )
    return replace(
        seen,
        runs=(view,),
        carbon=replace(seen.carbon, slots=longer),
        policy=replace(seen.policy, dwell_s=factor * seen.policy.dwell_s),
        cycle_s=factor * seen.cycle_s,
    )


@given(observations())
def test_the_mode_changes_no_decision(seen: Observation) -> None:
    """Observing, advising and acting see the same choice."""
    assert decide(replace(seen, mode=Mode.OBSERVE)) == decide(replace(seen, mode=Mode.ACT))


def documented_kinds() -> set[str]:
    """The kinds in the table of docs/policies.md."""
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([a-z_]+)` \|", text, flags=re.MULTILINE))


def test_every_kind_of_reason_in_the_code_is_documented() -> None:
    """And nothing is documented that no code says."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "policies").rglob("*.py"))
    said = set(re.findall(r"(?:hold|switch)\(\s*\"([a-z_]+)\"", code))
    said |= set(re.findall(r"return \"([a-z_]+)\", ", code))
    said |= set(re.findall(r"_(?:wake|sleep)\(\s*context, (?:[a-z._]+, )?\"([a-z_]+)\"", code))
    said |= set(re.findall(r"_too_soon\(\s*\"([a-z_]+)\"", code))
    said |= set(re.findall(r"Action\.[A-Z]+,\s*\"([a-z_]+)\"", code)) | {UNDECIDABLE}
    assert said == documented_kinds()
