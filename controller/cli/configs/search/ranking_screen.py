"""What measuring each point of a search is worth, as JSON and as a screen. Pure."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.cost_model.profile_ranking import AskedRanking, ProfileRanking
from wattmesh.policies.layout_search.next_profile import ProfileCandidate
from wattmesh.policies.layout_search.own_points import ALARM

SHOWN = 8
"""Points to measure next that the screen has."""

NEXT_COLUMNS = (
    Column(title="MEASURE NEXT"),
    Column(title="CLOCK", right=True),
    Column(title="TOKENS/S", right=True),
    Column(title="J/TOKEN", right=True),
    Column(title="IF TRUE", right=True),
    Column(title="EXPECTED", right=True),
)


def ranking_json(
    answer: dict[str, Any], asked: AskedRanking, ranking: ProfileRanking
) -> dict[str, Any]:
    """Give what a ranked search has beyond a plain one; `point` counts its `points` from 0."""
    points = answer["points"]
    return {
        "grid": asked.grid,
        "hours": len(asked.hours_g_per_kwh),
        "tokens": asked.tokens,
        "measured": [_candidate(each, ranking.over_predicted) for each in ranking.known],
        "points": [
            {**each, "corrected": corrected, "spread": mine.spread}
            for each, corrected, mine in zip(points, ranking.corrected, ranking.points, strict=True)
        ],
        "next": [
            {
                "point": int(each.id),
                "name": name_of(points[int(each.id)]),
                "tokens_per_s": ranking.points[int(each.id)].tokens_per_s,
                "j_per_token": ranking.points[int(each.id)].j_per_token,
                "saves_if_true_g": each.if_true_g,
                "saves_expected_g": each.expected_g,
                "sentence": each.sentence.replace(each.id, name_of(points[int(each.id)]), 1),
            }
            for each in ranking.ranked
        ],
    }


def next_layouts(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the most worthwhile point of each layout: who measures one has most of its clocks."""
    found: dict[str, dict[str, Any]] = {}
    for each in answer.get("next", []):
        if each["saves_expected_g"] != 0:
            found.setdefault(answer["points"][each["point"]]["layout"], each)
    return list(found.values())


def name_of(point: dict[str, Any]) -> str:
    """Name a point by what sets it apart."""
    parts = [point["layout"], f"zero{point['zero']}", f"mb{point['micro_batch']}"]
    if point["chunks"] > 1:
        parts.append(f"chunks{point['chunks']}")
    if point["recompute"] != "none":
        parts.append(f"recompute {point['recompute']}")
    return " ".join([*parts, f"@{point['clock']:.0%}"])


def _candidate(each: ProfileCandidate, over_predicted: dict[str, float]) -> dict[str, Any]:
    name = each.id.removeprefix("measured ")
    ratio = over_predicted.get(name)
    return {
        "id": name,
        "tokens_per_s": each.tokens_per_s,
        "j_per_token": each.j_per_token,
        "step_over_predicted": ratio,
        "alarm": ratio is not None and abs(ratio - 1) > ALARM,
    }


def ranking_lines(answer: dict[str, Any], columns: int) -> Iterator[Text | str]:
    """Lay out what to measure next, the most worthwhile first; nothing without a grid."""
    if "next" not in answer:
        return
    days = quantities.duration(answer["hours"] * 3600.0)
    measured = len(answer["measured"])
    yield ""
    yield styled(
        (f"{quantities.count(answer['tokens'])} tokens in {days} on {answer['grid']}", STRONG),
        f" · {formats.plural(measured, 'point')} measured",
    )
    for each in answer["measured"]:
        if each["alarm"]:
            ratio = quantities.figures(each["step_over_predicted"])
            said = f"! a step of {each['id']} takes {ratio} times what is predicted"
            yield styled((f"{said}; the others are corrected by it", WARN))
    useful = next_layouts(answer)[:SHOWN]
    yield from table(
        NEXT_COLUMNS,
        [
            (
                each["name"].rsplit(" @", 1)[0],
                each["name"].rsplit("@", 1)[1],
                quantities.count(each["tokens_per_s"]),
                quantities.figures(each["j_per_token"]),
                quantities.grams(each["saves_if_true_g"]),
                quantities.grams(each["saves_expected_g"]),
            )
            for each in useful
        ],
    )
    if useful:
        yield from formats.wrapped(f"{useful[0]['sentence']}.", columns)
    said = "IF TRUE, EXPECTED: CO2 saved against what is known, if as predicted, and on the average"
    yield from (
        styled((each, DIM)) for each in formats.wrapped(f"{said} of its interval.", columns)
    )
