"""The screens of `experts costs` and `experts bench`."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli.output import WARN, styled
from wattmesh.controller.cli.tables import Column, table


def bench_lines(answer: dict[str, Any]) -> Iterator[Text | str]:
    """Say what a group of GPUs can save."""
    yield f"one layer of {answer['experts']} experts on {answer['gpus']}; modelled, vendors' watts"
    yield ""
    columns = [
        Column(title="EXPERTS"),
        Column(title="ENERGY", right=True),
        Column(title="SLOWEST", right=True),
        Column(title="LOADS, IN EXPERTS PER GPU"),
    ]
    rows = [
        [
            row["case"],
            f"{100 * (row['energy_over_equal'] - 1):+.1f} %",
            f"{row['time_over_balanced']:.2f}x",
            ", ".join(f"{kind} {quantities.figures(each)}" for kind, each in row["loads"].items()),
        ]
        for row in answer["rows"]
    ]
    yield from table(columns, rows)
    yield ""
    if not answer["shift_gains"]:
        yield "all GPUs are alike: nothing leans, and a router with costs trains exactly as without"
    for gain in answer["shift_gains"]:
        saves = gain["gain_w"] > 0
        yield (
            f"rows from {gain['from']} to all {gain['to']}: {'saves' if saves else 'wastes'} "
            f"{quantities.watts(abs(gain['gain_w']))} for as long as the others wait for it"
        )


def told_lines(answer: dict[str, Any]) -> Iterator[Text | str]:
    """Say what a live run is told of its experts' costs, and what it was learned from."""
    if answer["version"]:
        yield (
            f"version {answer['version']}, strength {answer['strength']:g}, known to hold "
            f"{quantities.duration(answer['age_s'])} ago"
        )
    else:
        yield "the run is told nothing, and keeps what it has"
    yield ""
    named = {each["gpu"]: each for each in answer["gpus"]}
    shown = [
        {**each, "dropped": [each["unused"]] if each["unused"] else []} for each in named.values()
    ]
    if shown:
        yield from costs_lines({"gpus": shown, "neutral_because": answer["neutral_because"]})
    elif answer["neutral_because"]:
        yield answer["neutral_because"]


def costs_lines(answer: dict[str, Any]) -> Iterator[Text | str]:
    """Say what each GPU's experts cost."""
    columns = [
        Column(title="GPU"),
        Column(title="J PER 1000 TOKENS", right=True),
        Column(title="+-", right=True),
        Column(title="IDLE", right=True),
        Column(title="SPANS", right=True),
        Column(title="SCORE", right=True),
    ]
    rows = [
        [
            each["gpu"] + (" (simulated)" if each["simulated"] else ""),
            quantities.figures(1000 * each["joules_per_token"]),
            quantities.figures(1000 * each["deviation"]),
            quantities.watts(each["idle_w"]),
            str(each["spans"]),
            f"{each['score']:+.2f}",
        ]
        for each in answer["gpus"]
    ]
    yield from table(columns, rows)
    if answer["neutral_because"]:
        yield ""
        yield f"all scores are 0: {answer['neutral_because']}"
    for each in answer["gpus"]:
        for sentence in each["dropped"]:
            yield styled((f"{each['gpu']}: {sentence}; this span was not used", WARN))
