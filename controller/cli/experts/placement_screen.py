"""The screen of `experts place`: before and after, and how long each GPU computes."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli.output import DIM, styled
from wattmesh.controller.cli.tables import Column, table

WIDTH = 30
MOST_GPUS = 32
"""GPUs that are drawn; the slowest ones, where there are more."""

ROWS = (
    ("crossings between nodes", "crossings"),
    ("crossings within nodes", "near_crossings"),
    ("energy of experts (modelled)", "layer_energy_j"),
    ("the same with crossings", "total_j"),
    ("time of experts", "layer_s"),
    ("slowest GPU over balanced", "worst_load"),
)


def no_gain(answer: dict[str, Any]) -> str:
    """Say that nothing is better than what is."""
    return f"nothing in time takes fewer joules than experts {answer['before_is']}"


def place_lines(answer: dict[str, Any]) -> Iterator[Text | str]:
    """Say what a placement changes."""
    before, after = answer["before"], answer["after"]
    yield (
        f"{answer['layers']} layers of {answer['experts']} experts on {len(answer['gpus'])} GPUs; "
        "nothing was moved"
    )
    yield ""
    columns = [
        Column(title=""),
        Column(title=answer["before_is"].upper(), right=True),
        Column(title="PLACED", right=True),
        Column(title="CHANGE", right=True),
    ]
    rows = [
        [name, _value(key, before[key]), _value(key, after[key]), _change(before[key], after[key])]
        for name, key in ROWS
    ]
    yield from table(columns, rows)
    yield ""
    if not answer["gains"]:
        yield f"{no_gain(answer)}: they stay"
        yield ""
    yield from _bars(answer)
    copies = answer["copies"]
    if copies:
        yield ""
        yield f"{len(copies)} copies of hot experts; in training their gradients must be summed"


def _bars(answer: dict[str, Any]) -> Iterator[Text]:
    told = answer.get("seconds_by_gpu_with_copies", answer["seconds_by_gpu_after"])
    before = answer["seconds_by_gpu_before"]
    longest = max(*told, *before) or 1.0
    order = sorted(range(len(told)), key=lambda at: -max(told[at], before[at]))[:MOST_GPUS]
    width = max(len(answer["gpus"][at]) for at in order)
    yield styled((f"{'':{width}}  {answer['before_is']:{WIDTH}}  placed", DIM))
    for at in sorted(order):
        bars = [_bar(each[at] / longest) for each in (before, told)]
        yield Text(f"{answer['gpus'][at]:{width}}  {bars[0]:{WIDTH}}  {bars[1]}")
    if len(told) > MOST_GPUS:
        yield styled((f"and {len(told) - MOST_GPUS} GPUs that end earlier", DIM))


def _bar(share: float) -> str:
    return "█" * round(share * WIDTH) or "▏"


def _value(key: str, value: float) -> str:
    if key in ("layer_energy_j", "total_j"):
        return quantities.joules(value)
    if key == "layer_s":
        return f"{quantities.figures(value)} s"
    if key == "worst_load":
        return f"{value:.2f}x"
    return quantities.count(value)


def _change(before: float, after: float) -> str:
    if before == 0:
        return "-"
    return f"{100 * (after / before - 1):+.1f} %"
