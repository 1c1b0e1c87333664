"""A small invented demo, to test what is made of one."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.demo.evidence import Band, PictureEvidence, RunCurves, Span, SwitchMark
from examples.demo.plan import DemoPlan
from examples.demo.record import RunFacts, RunReadBack, SwitchFact
from examples.demo.report import Demo
from tests.builders.points import point
from wattmesh.reconfig.catalogue import Catalogue, Equivalence
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.step_log import StepRow

STEPS = 120


def catalogue() -> Catalogue:
    """Give three points: four ranks, two ranks, and a pipeline on four."""
    shapes = {
        "A": Layout(dp_shard=2, tp=2),
        "B": Layout(tp=2),
        "C": Layout(pp=2, dp_shard=2),
    }
    points = tuple(
        point(
            name,
            layout,
            350.0 * layout.world_size,
            700.0 * layout.world_size,
            equivalence=Equivalence.NONE,
            sources={"tokens_per_s": "measured", "power_w": "simulated"},
        )
        for name, layout in shapes.items()
    )
    return Catalogue(job="train", tokens_total=STEPS * 256, reference="A", points=points)


def steps(error: float = 0.0) -> tuple[StepRow, ...]:
    """Give a falling loss; every later step off by `error`, relatively."""
    shapes = (("dp2 tp2", 4), ("tp2", 2), ("pp2 dp2", 4))
    return tuple(
        StepRow(
            step=number,
            tokens=number * 256,
            loss=(2.0 + 3.6 * math.exp(-number / 40)) * (1 + error * number / STEPS),
            layout=shapes[(number - 1) * 3 // STEPS][0],
            gpus=shapes[(number - 1) * 3 // STEPS][1],
            monotonic_s=number * 0.2,
            elapsed_s=0.2,
            overrun_s=0.01 if number % 12 == 0 else 0.0,
            computed_s=0.05,
        )
        for number in range(1, STEPS + 1)
    )


def switch(**changes: Any) -> SwitchFact:
    """Give one confirmed switch."""
    fact = SwitchFact(
        step=40,
        from_point="A",
        to_point="B",
        seconds=1.1,
        probe_difference=2e-7,
        requested_by="policy",
        decided_by="plan",
        reason="The grid rose.",
        predicted_g=0.4,
        switch_cost_g=0.1,
    )
    return replace(fact, **changes)


def run(**changes: Any) -> RunFacts:
    """Give one run."""
    facts = RunFacts(
        steps=steps(3e-6),
        switches=(
            switch(),
            switch(step=80, from_point="B", to_point="C", requested_by="operator",
                   decided_by="operator", probe_difference=0.0),
        ),
        carbon_ug=4_800_000,
        baseline_ug=5_900_000,
        saved_ug=1_100_000,
        energy_mj=90_000_000,
        unobserved_s=0.0,
        deadline_met=True,
        deadline_slack_s=2.0,
    )  # fmt: skip
    return replace(facts, **changes)


def demo(folder: Path, **changes: Any) -> Demo:
    """Give a whole demo."""
    facts = Demo(
        plan=DemoPlan(folder=folder, steps=STEPS),
        catalogue=catalogue(),
        main=run(),
        control=run(
            steps=steps(), switches=(), carbon_ug=5_800_000, baseline_ug=5_800_000, saved_ug=0
        ),
        reordered=steps(2e-6),
        hindsight_bound_g=4.6,
        wall_s=123.4,
        parts_s={"main run": 55.0},
        training={
            "processes": 4,
            "backend": "gloo",
            "parameters": 1_050_000,
            "steps": STEPS,
            "learning_rate": 3e-4,
            "clip": 1.0,
            "dtype": "fp32",
        },
    )
    return replace(facts, **changes)


def read_back() -> RunReadBack:
    """Give one run as it was read back, with the curves of `evidence`."""
    shown = evidence()
    return RunReadBack(
        facts=run(),
        curves=shown.main,
        measured=shown.intensity,
        forecast=shown.forecast,
        deadline_s=shown.deadline_s,
        bound_g=None,
    )


def evidence() -> PictureEvidence:
    """Give what a picture is drawn from."""
    bands = (
        Band(start_s=0, end_s=8, point="A", layout="dp2 tp2", ranks=4),
        Band(start_s=8, end_s=9, point="A", layout="dp2 tp2", ranks=4, moving=True),
        Band(start_s=9, end_s=24, point="B", layout="tp2", ranks=2),
    )
    losses = tuple(row.loss for row in steps())
    return PictureEvidence(
        day="Great Britain, 14 June 2023",
        attribution="NESO, CC BY 4.0",
        compress=1440.0,
        starts_h=0.0,
        deadline_s=30.0,
        intensity=tuple(Span(start_s=i, end_s=i + 1.0, value=150.0 + i) for i in range(30)),
        forecast=tuple(Span(start_s=i, end_s=i + 1.0, value=155.0 + i) for i in range(30)),
        main=RunCurves(
            name="wattmesh",
            bands=bands,
            power_w=(Span(start_s=0, end_s=24, value=2000.0),),
            losses=tuple(row.loss for row in steps(1e-6)),
            marks=(SwitchMark(step=40, at_s=8, from_point="A", to_point="B", by_operator=False),),
        ),
        control=RunCurves(
            name="control",
            bands=bands[:1],
            power_w=(Span(start_s=0, end_s=20, value=2800.0),),
            losses=losses,
        ),
        reordered=RunCurves(name="reordered", losses=losses),
        headline="4.8 g against 5.8 g",
        beside="baseline ledger 5.9 g",
        scale="nothing is multiplied",
        simulated=("GPU power",),
    )
