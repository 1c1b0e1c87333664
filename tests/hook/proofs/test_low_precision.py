"""Work in bf16 over fp32 parameters: switches stand, and what is wrong is still taken back."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hook.harness import Zygote
from tests.hook.proofs.low_precision_job import Work
from wattmesh.reconfig.probe.noise import ASSUMED, ORDERS, TIMES_FLOOR
from wattmesh.reconfig.probe.rebuild_check import relative

DP2, TP2, PP2 = {"dp_shard": 2}, {"tp": 2}, {"pp": 2}
FP32, ASSUMED_BF16 = (TIMES_FLOOR * ASSUMED[dtype] for dtype in ("float32", "bfloat16"))


@dataclass(frozen=True, slots=True)
class Told:
    """What a run told of its switches: states with their number, details, the last evidence."""

    states: Counter[str]
    details: str
    evidence: list[dict[str, Any]]


def run(zygote: Zygote, folder: Path, turns: list[Any], **work: Any) -> Told:
    """Run the job on two ranks through some switches."""
    out = folder / "out"
    out.mkdir(parents=True)
    options = Work(folder=str(folder / "ck"), out=str(out), turns=turns, **work)
    environment = {"LOW_PRECISION": options.to_text()}
    number = zygote.start(2, environment, out, "tests.hook.proofs.low_precision_job:main")
    assert zygote.wait(number, 240) == 0, "\n".join(p.read_text() for p in out.glob("*.log"))
    told = json.loads((out / "told.json").read_text())
    return Told(
        Counter(state for state, _, _ in told),
        " ".join(detail for _, detail, _ in told),
        [evidence for state, _, evidence in told if state in ("confirmed", "rolled_back")],
    )


@pytest.mark.parametrize(
    ("kind", "turns"),
    [("example", [(4, TP2), (6, PP2), (8, DP2)]), ("fsdp", [(4, TP2), (6, DP2)])],
)
def test_a_job_that_computes_in_bf16_goes_through_layouts(
    zygote: Zygote, tmp_path: Path, kind: str, turns: list[Any]
) -> None:
    """Every switch stands, though the probe moves by more than rounding in fp32 explains.

    What it may move by was measured, and is below what bf16 is assumed to need.
    """
    told = run(zygote, tmp_path, turns, kind=kind)
    assert told.states["confirmed"] == len(turns), told.details
    moved = {relative(each["probe_after"], each["probe_before"]): each for each in told.evidence}
    most, evidence = max(moved.items())
    assert FP32 < most <= evidence["probe_allowed"] < ASSUMED_BF16, moved
    assert evidence["computed_in"] == "bfloat16"
    assert 1 <= evidence["probe_orders"] <= ORDERS


def test_a_damaged_tensor_that_the_probe_cannot_see_is_caught_by_the_digest(
    zygote: Zygote, tmp_path: Path
) -> None:
    """One weight off by a thousandth. The sabotaged twin, with the digest off, lets it pass."""
    turns = [(4, TP2)]
    told = run(zygote, tmp_path / "seen", turns, damaged=True)
    assert told.states["rolled_back"] == 1
    assert re.search("every rank has digest 2:[0-9a-f]{16}, the checkpoint", told.details)
    assert "probe" not in told.details
    told = run(zygote, tmp_path / "blind", turns, damaged=True, blind=True)
    assert told.states["confirmed"] == 1, told.details
    (evidence,) = told.evidence
    assert evidence["digest_before"] != evidence["digest_after"]


def test_a_layout_that_computes_something_else_is_caught_by_the_probe(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Activations scaled by a rank's width: every tensor is what it was, so no digest sees it."""
    told = run(zygote, tmp_path, [(4, TP2)], wrong=True)
    assert told.states["rolled_back"] == 1
    assert "the probe loss is" in told.details
    assert "digest" not in told.details
