"""The random streams of a script are its own: observed, saved and moved, never seeded by us."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.attach.untouched.streams_job import Streams
from tests.hook.harness import Zygote

TP2 = {"tp": 2}
DP2 = {"dp_shard": 2}

Lines = dict[int, list[dict[str, Any]]]
"""What each rank saw, step by step."""


def run(zygote: Zygote, folder: Path, **changes: Any) -> Lines:
    """Run the job on two ranks; again in the same folder, it goes on."""
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    options = Streams(folder=str(folder / "ck"), out=str(out))
    environment = {"STREAMS": replace(options, **changes).to_text()}
    number = zygote.start(2, environment, out, "tests.attach.untouched.streams_job:main")
    logs = sorted(out.glob("*.log"))
    assert zygote.wait(number, 120) == 0, "\n".join(each.read_text() for each in logs)
    return {
        rank: [json.loads(line) for line in (out / f"rank-{rank}.jsonl").read_text().splitlines()]
        for rank in range(2)
    }


@pytest.fixture(scope="module")
def plain(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """What the script does without wattmesh."""
    return run(zygote, tmp_path_factory.mktemp("plain"), attached=False, steps=12)


def first_steps(lines: Lines, count: int) -> Lines:
    """The first steps of every rank."""
    return {rank: each[:count] for rank, each in lines.items()}


def test_a_script_that_is_observed_trains_as_it_would_alone(
    zygote: Zygote, tmp_path: Path, plain: Lines
) -> None:
    """Losses, masks and draws of python, numpy and torch are bit-equal, through saves and a resume.

    The probe draws from the streams, and two launches train what the script trains in one.
    """
    assert run(zygote, tmp_path, steps=4) == first_steps(plain, 4)
    assert run(zygote, tmp_path, steps=8) == first_steps(plain, 8)
    assert all(a["mask"] != b["mask"] for a, b in zip(plain[0], plain[1], strict=True))


def goes_on_as_documented(lines: Lines, plain: Lines) -> bool:
    """Whether streams went on by data parallel rank through dp 2, tp 2 and dp 2, four steps each.

    The first data parallel rank's stream goes on at every step, on both ranks while both work for
    it; the second one's rests meanwhile, and goes on where it stopped.
    """
    first = [each["draws"] for each in plain[0]]
    second = [each["draws"] for each in plain[1]]
    seen = {rank: [each["draws"] for each in lines[rank]] for rank in lines}
    return seen[0] == first and seen[1] == second[:4] + first[4:8] + second[4:8]


def test_streams_go_on_by_data_parallel_rank_through_switches(
    zygote: Zygote, tmp_path: Path, plain: Lines
) -> None:
    """From dp 2 to tp 2 and back: nothing is drawn twice, and two data ranks never draw alike."""
    turns = [(4, TP2), (8, DP2)]
    lines = run(zygote, tmp_path, steps=12, turns=turns)
    assert [each["layout"] for each in lines[0][3::4]] == ["dp2", "tp2", "dp2"]
    assert goes_on_as_documented(lines, plain)
    alike = [a["mask"] == b["mask"] for a, b in zip(lines[0], lines[1], strict=True)]
    assert alike == [False] * 4 + [True] * 4 + [False] * 4


def test_ranks_that_are_seeded_alike_would_show(
    zygote: Zygote, tmp_path: Path, plain: Lines
) -> None:
    """The sabotaged twin: streams set from the step alone give both data ranks one mask."""
    lines = run(zygote, tmp_path, steps=12, turns=[(4, TP2), (8, DP2)], reseeded=True)
    assert not goes_on_as_documented(lines, plain)
    assert first_steps(lines, 4) != first_steps(plain, 4)
    assert [a["mask"] == b["mask"] for a, b in zip(lines[0], lines[1], strict=True)][:4] == [
        *(False, False, True, True)
    ]
