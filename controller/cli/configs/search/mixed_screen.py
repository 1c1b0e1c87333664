"""What a search over two classes of GPUs found, as JSON and as a screen. Pure."""

from typing import Any

import numpy as np
from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.configs.search.counts_screen import counts_json, counts_lines
from wattmesh.controller.cli.configs.search.screen import RECOMPUTE
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, fitted
from wattmesh.policies.layout_search.expert_groups import WAY
from wattmesh.policies.layout_search.gpu_parts import MixedJob
from wattmesh.policies.layout_search.mixed import MixedLayouts
from wattmesh.policies.layout_search.search import on_hull

COLUMNS = (
    Column(title="LAYOUT"),
    Column(title="BY CLASS"),
    Column(title="ZERO", right=True, spare=3),
    Column(title="MICRO BATCH", right=True, spare=1),
    Column(title="RECOMPUTE", spare=2),
    Column(title="CLOCK", right=True),
    Column(title="STEP", right=True),
    Column(title="TOKENS/S", right=True),
    Column(title="J/TOKEN", right=True),
)


def mixed_json(job: MixedJob, found: MixedLayouts) -> dict[str, Any]:
    """Give every layout of the front."""
    rate = job.global_batch * job.seq_len / found.step_s
    hull = on_hull(rate, found.j_per_token)
    return {
        "gpus": sum(part.gpus for part in job.parts),
        "gpu": " + ".join(f"{part.gpus} {part.gpu.name}" for part in job.parts),
        "parts": [{"gpus": part.gpus, "gpu": part.gpu.name} for part in job.parts],
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "evidence": "predicted",
        "layouts": found.fitting + sum(found.excluded.values()),
        "fitting": found.fitting,
        "excluded": found.excluded,
        "expert_groups": None if found.compared is None else counts_json(found.compared),
        "points": [
            {**_point(found, at), "tokens_per_s": float(rate[at]), "on_hull": bool(hull[at])}
            for at in range(len(rate))
        ],
    }


def _point(found: MixedLayouts, at: int) -> dict[str, Any]:
    def degree(name: str, part: int = 0) -> int:
        return int(np.asarray(getattr(found.layout[part], name))[at])

    spans = bool(found.experts[0][at] or found.experts[1][at])
    return {
        "dealt": "stages" if found.by_stages[at] else "experts" if spans else "replicas",
        "expert_counts": ("by speed" if found.by_speed[at] else "equal") if spans else None,
        "degrees": {name: degree(name) for name in ("tp", "pp", "cp", "ep")},
        "zero": degree("zero"),
        "micro_batch": degree("micro_batch"),
        "chunks": degree("chunks"),
        "recompute": RECOMPUTE.get(float(degree("recompute")), "none"),
        "classes": [
            {
                "dp": degree("dp", part),
                "layers_of_stage": float(found.layers[part][at]),
                "micro_batches": int(found.batches[part][at]),
                "micro_batch": degree("micro_batch", part),
                "experts": int(found.experts[part][at]) if spans else None,
            }
            for part in (0, 1)
        ],
        "clock": float(found.clock[at]),
        "step_s": float(found.step_s[at]),
        "j_per_token": float(found.j_per_token[at]),
        "memory_share": float(found.memory_share[at]),
    }


def mixed_lines(answer: dict[str, Any], columns: int, *, everything: bool) -> list[Text | str]:
    """Lay out the points that are worth measuring, fastest first."""
    points = [each for each in answer["points"] if everything or each["on_hull"]]
    fitting = quantities.count(answer["fitting"])
    lines: list[Text | str] = [
        styled(
            (answer["gpu"], STRONG),
            f" · {fitting} ways to share fit into memory; nothing beats {len(answer['points'])}",
        )
    ]
    if not points:
        told = {why: gone for why, gone in answer["excluded"].items() if not why.startswith(WAY)}
        reason, gone = max(told.items(), key=lambda each: each[1])
        why = f"no layout is possible on both: most fell to the rule {reason} ({gone} of them)"
        return [*lines, styled((why, WARN)), *counts_lines(answer, columns, everything=everything)]
    rows = [
        (
            " ".join(f"{name}{size}" for name, size in each["degrees"].items() if size > 1) or "-",
            _shares(answer, each),
            str(each["zero"]),
            "/".join(dict.fromkeys(str(part["micro_batch"]) for part in each["classes"])),
            each["recompute"],
            f"{each['clock']:.0%}",
            quantities.duration(each["step_s"]),
            quantities.count(each["tokens_per_s"]),
            quantities.figures(each["j_per_token"]),
        )
        for each in points
    ]
    table, _ = fitted(COLUMNS, rows, columns)
    said = (
        "BY CLASS: data-parallel replicas x microbatches of each in a step, or layers of a stage, "
        "or experts of a GPU x samples of its microbatch. "
        "Predicted, not measured; clocks are relative to each class's highest."
    )
    return [
        *lines,
        "",
        *table,
        "",
        *(styled((each, DIM)) for each in formats.wrapped(said, columns)),
        *counts_lines(answer, columns, everything=everything),
    ]


def _shares(answer: dict[str, Any], point: dict[str, Any]) -> str:
    names = [part["gpu"] for part in answer["parts"]]
    if point["dealt"] == "stages":
        layers = [f"{name} {each['layers_of_stage']:.0f}" for name, each in
                  zip(names, point["classes"], strict=True)]  # fmt: skip
        return f"layers {', '.join(layers)}"
    if point["dealt"] == "experts":
        held = [f"{name} {each['experts']}x{each['micro_batch']}" for name, each in
                zip(names, point["classes"], strict=True)]  # fmt: skip
        return f"experts {', '.join(held)}"
    shares = [f"{name} {each['dp']}x{each['micro_batches']}" for name, each in
              zip(names, point["classes"], strict=True)]  # fmt: skip
    return ", ".join(shares)
