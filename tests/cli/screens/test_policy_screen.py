"""The screen of `policy bench`: ours beside the best rival and below the bound, misses in red."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.builders.observations import PAIR
from tests.cli.screens.test_screens import plain, red
from wattmesh.controller.cli.policy.policy_screen import screen
from wattmesh.controller.replay.bench import ReplayRequest, Row
from wattmesh.controller.replay.world import Noise

START = datetime(2023, 3, 1, tzinfo=UTC)
ASKED = ReplayRequest(catalogue=PAIR, slacks=(1.1, 2.0), count=2)
SAVINGS = {
    "static-efficient": (0.10, 0.10),
    "energy-min": (0.12, 0.14),
    "equal-step": (0.11, 0.16),
    "mpc": (0.13, 0.25),
    "oracle": (0.14, 0.30),
}


def row(policy: str, slack: float, saving: float, **changes: Any) -> Row:
    """One row."""
    facts: dict[str, Any] = {
        "policy": policy,
        "trace": "DE_2023",
        "slack": slack,
        "start": START,
        "carbon_g": 1.0 - saving,
        "energy_j": 1.0,
        "saving": saving,
        "bound_saving": 0.32,
        "ideal_saving": 0.33,
        "share_of_oracle": saving / 0.30,
        "switches": 3,
        "most_switches_a_day": 2,
        "clock_changes": 1,
        "finished_h": 24.0,
        "deadline_met": True,
        "solve_s": 0.016,
    }
    return Row(**(facts | changes))


def rows(**of_mpc: Any) -> list[Row]:
    """Two starts of every policy and slack; the second saves two points more."""
    return [
        row(policy, slack, saving + extra, start=start, **(of_mpc if policy == "mpc" else {}))
        for start, extra in ((START, -0.01), (START + timedelta(days=30), 0.01))
        for at, slack in enumerate((1.1, 2.0))
        for policy, saving in ((name, both[at]) for name, both in SAVINGS.items())
    ]


def line(text: str, begins: str) -> list[str]:
    """The words of the first line that begins so, without the beginning."""
    found = next(each for each in text.splitlines() if each.startswith(begins))
    return found.removeprefix(begins).split()


def test_a_saving_names_what_it_is_against_and_that_it_is_replayed() -> None:
    """With the forecast, the starts and the noise it holds for."""
    head = plain(screen(rows(), ASKED)).splitlines()[:2]
    assert head[0] == "job · unused GPUs parked · forecast own · 2 starts a trace"
    assert head[1].startswith("replayed, not measured: % saved against static-fastest")
    noisy = replace(ASKED, noise=Noise(throughput=0.05, switch_failure=0.02))
    said = plain(screen(rows(), noisy)).splitlines()[2]
    told = "up to 5 % of speed lost, 2 % of switches fail"
    assert said == f"noise: {told}; none in oracle or bound"
    assert len(said) <= 80


def test_cells_are_means_over_starts_and_the_best_rival_of_each_is_marked() -> None:
    """Another rule may be the best at another slack; the oracle and ours are no rivals."""
    text = plain(screen(rows(), ASKED))
    assert line(text, "energy-min") == ["12.0*", "14.0", "3.0", "0.016"]
    assert line(text, "equal-step") == ["11.0", "16.0*", "3.0", "0.016"]
    assert line(text, "mpc  ") == ["13.0", "25.0", "3.0", "0.016"]
    assert line(text, "mpc over the best *") == ["+1.0", "+9.0"]
    assert line(text, "bound  ") == ["32.0", "32.0"]
    assert line(text, "bound, free switches") == ["33.0", "33.0"]


def test_ours_is_told_as_a_share_of_the_oracle_and_of_what_it_adds() -> None:
    """Where the oracle adds less than two points to one point, the share of that is a dash."""
    text = plain(screen(rows(), ASKED))
    assert line(text, "% of the oracle's saving") == ["43", "83"]
    assert line(text, "% of what the oracle adds") == ["75", "75"]
    flat = [
        replace(each, saving=SAVINGS["static-efficient"][0] + 0.01)
        if each.policy == "oracle"
        else each
        for each in rows()
    ]
    assert line(plain(screen(flat, ASKED)), "% of what the oracle adds")[0] == "-"


@pytest.mark.parametrize("slack", [1.0, 1.25, 2.0])
def test_the_legend_explains_a_column_that_is_there(slack: float) -> None:
    """The first of the slacks that were replayed, as its column is headed."""
    text = plain(screen([replace(each, slack=slack) for each in rows()], ASKED))
    assert f" {slack:g}x " in text
    times = "exactly" if slack == 1 else f"{slack:g} times"
    assert f"\n{slack:g}x: the deadline is at {times} what the fastest point needs" in text
    assert "1.1x" not in text


def test_what_was_lost_is_split_only_where_it_was_asked_for() -> None:
    """In points, by slack."""
    assert "lost to" not in plain(screen(rows(), ASKED))
    text = plain(screen(rows(regret_forecast=0.015, regret_planning=0.002), ASKED))
    assert line(text, "lost to the forecast") == ["1.5", "1.5"]
    assert line(text, "lost to planning") == ["0.2", "0.2"]


def test_a_missed_deadline_is_red_and_names_where_and_nothing_else_is_red() -> None:
    """In its cell, and below with the trace, the slack and the start."""
    assert red(screen(rows(), ASKED)) == []
    lines = screen(rows(deadline_met=False), ASKED)
    text = plain(lines)
    assert line(text, "mpc  ")[:2] == ["13.0!", "25.0!"]
    assert "mpc missed the deadline in 4 of 4 runs: DE_2023 1.1x from 2023-03-01, " in text
    assert text.endswith(", ...")
    told = red(lines)
    assert "13.0!" in told
    assert all("static" not in each for each in told)


@pytest.mark.parametrize("policies", [("mpc",), ("oracle",), ("static-fastest", "equal-step")])
def test_any_choice_of_policies_has_a_screen(policies: tuple[str, ...]) -> None:
    """Lines that need a policy that was not replayed are left out."""
    some = [replace(each, policy=policies[0]) for each in rows() if each.policy == "mpc"]
    some += [replace(each, policy=other) for each in some for other in policies[1:]]
    text = plain(screen(some, ASKED))
    assert "bound" in text
    assert "what it adds" not in text
    assert max(map(len, text.splitlines())) <= 80
