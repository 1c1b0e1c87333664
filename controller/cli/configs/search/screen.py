"""What a search found, as JSON and as a screen. Pure."""

from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, fitted
from wattmesh.policies.layout_search.search import FoundLayouts
from wattmesh.policies.layout_search.space import Job, broken_rules
from wattmesh.policies.parallelism.setups import FULL, SELECTIVE
from wattmesh.reconfig.layout import Layout

COLUMNS = (
    Column(title="LAYOUT"),
    Column(title="ZERO", right=True, spare=3),
    Column(title="MICRO BATCH", right=True, spare=1),
    Column(title="CHUNKS", right=True, spare=4),
    Column(title="RECOMPUTE", spare=2),
    Column(title="CLOCK", right=True),
    Column(title="STEP", right=True),
    Column(title="TOKENS/S", right=True),
    Column(title="J/TOKEN", right=True),
    Column(title="MEMORY", right=True),
)
NEXT = "next: measure the first ones with `wattmesh configs profile`"
RECOMPUTE = {FULL: "full", SELECTIVE: "selective"}


def search_json(job: Job, found: FoundLayouts) -> dict[str, Any]:
    """Give every layout of the front, with the space that it is out of."""
    return {
        "gpus": job.gpus,
        "gpu": job.gpu.name,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "evidence": "predicted",
        "layouts": found.space.size,
        "fitting": found.fitting,
        "excluded": found.space.excluded,
        "points": [_point(job, found, place) for place in range(len(found.which))],
    }


def _point(job: Job, found: FoundLayouts, place: int) -> dict[str, Any]:
    layouts, index = found.space.layout, found.which[place]

    def degree(name: str) -> int:
        return int(getattr(layouts, name)[index])

    layout = Layout(
        pp=degree("pp"), dp_shard=degree("dp"), cp=degree("cp"), tp=degree("tp"), ep=degree("ep")
    )
    step_s = float(found.step_s[place])
    return {
        "layout": str(layout),
        "degrees": {name: degree(name) for name in ("tp", "pp", "dp", "cp", "ep")},
        "zero": degree("zero"),
        "micro_batch": degree("micro_batch"),
        "chunks": degree("chunks"),
        "recompute": RECOMPUTE.get(float(layouts.recompute[index]), "none"),  # type: ignore[index]
        "clock": float(found.clock[place]),
        "step_s": step_s,
        "tokens_per_s": job.global_batch * job.seq_len / step_s,
        "j_per_token": float(found.j_per_token[place]),
        "memory_bytes": float(found.memory_bytes[place]),
        "w_per_gpu": float(found.node_w[place]),
        "on_hull": bool(found.on_hull[place]),
    }


def search_lines(answer: dict[str, Any], columns: int, *, everything: bool) -> list[Text | str]:
    """Lay out the points that are worth measuring, fastest first."""
    points = [each for each in answer["points"] if everything or each["on_hull"]]
    count = quantities.count
    unbeaten = f"; nothing beats {len(answer['points'])}" if answer["points"] else ""
    lines: list[Text | str] = [
        styled(
            (f"{answer['gpus']} {answer['gpu']}", STRONG),
            f" · {count(answer['layouts'])} layouts, {count(answer['fitting'])} fit into memory"
            + unbeaten,
        )
    ]
    if not points:
        return [*lines, styled((_why_nothing(answer), WARN))]
    rows = [
        (
            each["layout"],
            str(each["zero"]),
            str(each["micro_batch"]),
            str(each["chunks"]),
            each["recompute"],
            f"{each['clock']:.0%}",
            quantities.duration(each["step_s"]),
            count(each["tokens_per_s"]),
            quantities.figures(each["j_per_token"]),
            quantities.size(each["memory_bytes"]),
        )
        for each in points
    ]
    table, _ = fitted(COLUMNS, rows, columns)
    shown = "all of them" if everything else "those on the hull of speed and power; --all has more"
    return [
        *lines,
        "",
        *table,
        "",
        styled((f"predicted, not measured: {shown}", DIM)),
        styled((NEXT, DIM)),
    ]


def why_lines(job: Job, layout: Layout) -> list[Text | str]:
    """Say which rules a layout breaks on this job; that it may be run, where it breaks none."""
    degrees = {
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "ep": layout.ep,
        "micro_batch": 1,
        "chunks": 1,
        "zero": 1 if layout.data_parallel * layout.cp > 1 else 0,
        "recompute": 0,
    }
    broken = broken_rules(job, {name: float(value) for name, value in degrees.items()})
    if layout.world_size != job.gpus:
        broken = [f"its degrees multiply to {layout.world_size} ranks, not {job.gpus}", *broken]
    if not broken:
        return [f"{layout} keeps to every rule"]
    return [f"{layout} is left out:", *(f"  {each}" for each in broken)]


def _why_nothing(answer: dict[str, Any]) -> str:
    """Say which rule, or the memory, leaves nothing."""
    if answer["layouts"]:
        return "no layout fits into memory; ask for more GPUs, or GPUs with more memory"
    # They are in the order in which they were asked, so the last one to take any left nothing.
    rule, gone = next((rule, gone) for rule, gone in reversed(answer["excluded"].items()) if gone)
    return (
        f"no layout is possible: the last {gone} fell to the rule that {rule}; give another number "
        "of GPUs, --batch or --seq-len"
    )
