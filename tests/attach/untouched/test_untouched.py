"""Optimizers of any kind are trained by an attached script exactly as by the bare one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.attach.untouched.untouched_job import COUNTING, Untouched
from tests.hook.harness import Zygote

Lines = list[list[dict[str, Any]]]
"""What each rank saw, step by step."""

STEPS = 8


def run(zygote: Zygote, folder: Path, **changes: Any) -> Lines:
    """Run the job on two ranks; again in the same folder, it goes on."""
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    options = replace(Untouched(folder=str(folder / "ck"), out=str(out)), **changes)
    environment = {"UNTOUCHED": options.to_text()}
    number = zygote.start(2, environment, out, "tests.attach.untouched.untouched_job:main")
    assert zygote.wait(number, 120) == 0, "\n".join(p.read_text() for p in out.glob("*.log"))
    return [
        [json.loads(line) for line in (out / f"rank-{rank}.jsonl").read_text().splitlines()]
        for rank in range(2)
    ]


@pytest.fixture(scope="module")
def bare(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """What the script does without wattmesh."""
    return run(zygote, tmp_path_factory.mktemp("bare"), attached=False, steps=STEPS)


def part(lines: Lines, first: int, end: int) -> Lines:
    """Some steps of every rank."""
    return [each[first:end] for each in lines]


def resumed(lines: Lines) -> list[list[Any]]:
    """What must go on in another process; a count in a class does not."""
    return [
        [
            [h for at, h in enumerate(line["weights"]) if at != COUNTING] + line["streams"]
            for line in each
        ]
        for each in lines
    ]


def calls(lines: Lines) -> list[int]:
    """Calls of the hook per rank, over two processes of four steps each."""
    return [each[3]["calls"] + each[7]["calls"] for each in lines]


def test_optimizers_train_attached_as_they_do_bare(
    zygote: Zygote, tmp_path: Path, bare: Lines
) -> None:
    """Callbacks, draws, counts and hooks of all optimizers: bit-equal, and after a resume too."""
    assert run(zygote, tmp_path, steps=4) == part(bare, 0, 4)
    lines = run(zygote, tmp_path, steps=STEPS)
    assert resumed(lines) == resumed(bare)
    assert calls(lines) == [each[-1]["calls"] for each in bare]


def test_a_stand_in_that_is_stepped_at_attach_changes_every_one_of_them(
    zygote: Zygote, tmp_path: Path, bare: Lines
) -> None:
    """The sabotaged twin: what was done until November 2026."""
    lines = run(zygote, tmp_path, steps=2, spoil="stand-in")
    for rank in range(2):
        pairs = zip(lines[rank][1]["weights"], bare[rank][1]["weights"], strict=True)
        assert [a == b for a, b in pairs] == [False] * 4


def test_hooks_that_hear_of_slots_being_made_are_called_too_often(
    zygote: Zygote, tmp_path: Path, bare: Lines
) -> None:
    """The sabotaged twin of the resume."""
    run(zygote, tmp_path, steps=4)
    lines = run(zygote, tmp_path, steps=STEPS, spoil="hooks")
    assert calls(lines) == [each[-1]["calls"] + 1 for each in bare]
