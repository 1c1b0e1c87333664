"""`wattmesh report RUN`: one run, as a screen, JSON, a block for its model card, or a page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.text import Text

from wattmesh.controller.cli.accounting.model_card import CardWords, model_card
from wattmesh.controller.cli.accounting.run_facts import facts, state
from wattmesh.controller.cli.accounting.run_page import page
from wattmesh.controller.cli.answers import Answers
from wattmesh.controller.cli.drawing import drawn, put
from wattmesh.controller.cli.output import (
    DIM,
    STRONG,
    legend,
    print_json,
    print_lines,
    styled,
    to_json,
)

PICTURE = "wattmesh.controller.cli.accounting.run_report_picture"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForms:
    """In which forms the report of a run is written.

    Attributes:
        card: what people add to the block; None: no block. `page`: the file of the page.
        out: where screen, JSON or block go; None: to the terminal.
    """

    as_json: bool
    card: CardWords | None
    page: Path | None
    out: Path | None


def run_report(answers: Answers, run: str, forms: RunForms) -> None:
    """Ask for the report of a run, and write it.

    Raises:
        RetryLater: a block is asked for, and the run has no grams. WattmeshError: no answer, or no
            such run. InputInvalid: a file cannot be written.
    """
    view = answers.get(f"/v1/runs/{quote(run, safe='')}/report")
    # Before anything is written: a run without grams has no block.
    block = None if forms.card is None else model_card(view, forms.card)
    if forms.page is not None:
        picture = drawn(PICTURE, view).decode() if view["stretches"] else ""
        put(forms.page, page(view, picture).encode())
        if block is None and not forms.as_json and forms.out is None:
            print_lines([f"Wrote {forms.page}."])
            return
    if forms.out is not None:
        put(forms.out, _text(view, block, as_json=forms.as_json).encode())
    elif forms.as_json:
        print_json(view)
    elif block is not None:
        print("\n".join(block))
    else:
        print_lines(screen(view))


def screen(view: dict[str, Any]) -> list[Text | str]:
    """Lay out the report of a run."""
    told = facts(view)
    width = max(len(each.name) for each in told)
    lines: list[Text | str] = [styled((view["spent"]["name"], STRONG), f"   {state(view)}")]
    for each in told:
        beside = f"   {each.rests_on}" if each.rests_on else ""
        lines.append(styled((f"{each.name:<{width}}  ", DIM), (each.figure, STRONG), beside))
    return [*lines, *legend(lines)]


def _text(view: dict[str, Any], block: list[str] | None, *, as_json: bool) -> str:
    if as_json:
        return to_json(view) + "\n"
    return "".join(f"{line}\n" for line in (screen(view) if block is None else block))
