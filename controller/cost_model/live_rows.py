"""What a live run measured, as rows that `configs predict --measured` reads.

The daemon knows the speed of each point, the catalogue its layout and batch; the sizes of the model
it does not know, and they are named by whoever exports. Invariant: no column is guessed; what is
left empty is said, and a point that the rows cannot express is left out with its reason.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from wattmesh.durable import write_text
from wattmesh.errors import InputInvalid
from wattmesh.policies.parallelism.model_shape import ModelShape
from wattmesh.reconfig.catalogue import HIGHEST_MHZ, Catalogue, OperatingPoint

SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "gated_mlp", "vocab")
EXPERTS = ("experts", "topk", "moe_ffn")
COLUMNS = (
    *("name", "model", *SIZES, *EXPERTS, "seq_len", "gpu", "num_gpus"),
    *("tp", "pp", "vpp", "cp", "ep", "zero", "micro_batch", "global_batch", "recompute"),
    *("precision", "framework", "tokens_per_s_per_gpu", "measured_s", "measured_until"),
)
ROUNDED = 0.005
"""By how much a speed may differ that went through a journal and a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldByUser:
    """What neither the daemon nor the catalogue knows of a job.

    Attributes:
        shape: sizes of the model, None where nobody named it. `model`: its name, or "".
        gpu: class of its GPUs. `zero`: what data-parallel ranks deal among them, 0 to 3.
        micro_batch: samples, of points whose layout leaves it to the job; 0: not told.
        precision, framework: as columns of the table.
    """

    shape: ModelShape | None
    model: str
    gpu: str
    zero: int
    micro_batch: int
    precision: str
    framework: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRows:
    """The rows, and sentences about what is missing."""

    rows: tuple[Mapping[str, str], ...]
    left_out: Mapping[str, str]
    empty: tuple[str, ...]


def live_rows(run: Mapping[str, Any], catalogue: Catalogue, told: ToldByUser) -> LiveRows:
    """Make a row of each point that a run was measured at.

    Args:
        run: `run` of the daemon's answer.
        catalogue: that the run was registered with.
        told: the rest.

    Raises:
        InputInvalid: nothing is measured, or the catalogue is not the run's.
    """
    points = {each.id: each for each in catalogue.points}
    highest = max((each.clock_mhz or HIGHEST_MHZ for each in catalogue.points), default=0)
    rows, left_out = [], {}
    if not run["measured"]:
        raise InputInvalid(
            f"the daemon has measured no point of {run['name']} lately: it compares every ten "
            "minutes, with what the run trained steadily in the last seven days"
        )
    for line in run["measured"]:
        point = points.get(line["point"])
        if point is None or _differ(line["catalogue_tokens_per_s"], point.tokens_per_s):
            raise InputInvalid(
                f"{catalogue.job!r} is not the catalogue that {run['name']} was registered with: "
                f"its point {line['point']} is {'missing' if point is None else 'another'}; give "
                "that one with --catalogue"
            )
        if why := _inexpressible(point, highest):
            left_out[point.id] = why
            continue
        rows.append(_row(run["name"], line, point, catalogue, told))
    empty = tuple(_empty(catalogue, rows, told))
    return LiveRows(rows=tuple(rows), left_out=left_out, empty=empty)


def write_rows(found: LiveRows, path: Path) -> None:
    """Write a table.

    Raises:
        InputInvalid: it cannot be written there.
    """
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found.rows)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputInvalid(f"cannot write {path}: it is not a file; name another one")
    try:
        write_text(path, text.getvalue())
    except OSError as error:
        raise InputInvalid(f"cannot write {path}: {error.strerror}; name another file") from error


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > ROUNDED * max(one, other)


def _inexpressible(point: OperatingPoint, highest_mhz: int) -> str:
    """Say why a table of steps at full clock has no such row; "" where it has."""
    if (point.clock_mhz or HIGHEST_MHZ) < highest_mhz:
        return f"its clock is {point.clock_mhz} MHz, and predictions are at full clock"
    if point.layout.pp > 1 and point.layout.schedule != "1F1B":
        return f"its schedule is {point.layout.schedule}, and of how many chunks is not stated"
    return ""


def _row(
    name: str,
    line: Mapping[str, Any],
    point: OperatingPoint,
    catalogue: Catalogue,
    told: ToldByUser,
) -> dict[str, str]:
    layout, shape = point.layout, told.shape
    micro_batch = layout.micro_batch or told.micro_batch
    sizes = dict.fromkeys((*SIZES, *EXPERTS), "")
    if shape is not None:
        sizes = {each: f"{float(getattr(shape, _FIELDS.get(each, each))):g}" for each in sizes}
        if not shape.experts:
            sizes |= dict.fromkeys(EXPERTS, "")
    return sizes | {
        "name": f"{name} at {point.id}",
        "model": told.model,
        "seq_len": str(catalogue.seq_len or ""),
        "gpu": told.gpu,
        "num_gpus": str(point.gpus),
        "tp": str(layout.tp),
        "pp": str(layout.pp),
        "vpp": "1",
        "cp": str(layout.cp),
        "ep": str(layout.ep),
        "zero": str(told.zero if layout.data_parallel * layout.cp > 1 else 0),
        "micro_batch": str(micro_batch or ""),
        "global_batch": str(catalogue.global_batch or ""),
        "recompute": "full" if layout.recompute else "none",
        "precision": told.precision,
        "framework": told.framework,
        "tokens_per_s_per_gpu": f"{line['tokens_per_s'] / point.gpus:.6g}",
        "measured_s": f"{line['measured_s']:.0f}",
        "measured_until": str(line["until"]),
    }


_FIELDS = {"gated_mlp": "gated", "moe_ffn": "expert_ffn"}
"""Columns whose name in `ModelShape` is another one."""


def _empty(catalogue: Catalogue, rows: list[dict[str, str]], told: ToldByUser) -> Iterator[str]:
    """Say which columns must be filled in before the table can be used."""
    if told.shape is None:
        yield (
            f"{', '.join(SIZES)} are empty: nobody but you knows the model; name it with --model "
            "or --hf-config, or fill them in"
        )
    for name, stated in (("global_batch", catalogue.global_batch), ("seq_len", catalogue.seq_len)):
        if not stated:
            yield f"{name} is empty: the catalogue does not state it; fill it in"
    if any(not each["micro_batch"] for each in rows):
        yield (
            "micro_batch is empty where the layout leaves it to the job; say it with --micro-batch"
        )
