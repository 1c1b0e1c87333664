"""Rows of measured, or asked, configurations as columns of the cost model. Pure.

A row maps the columns of `train_configs.csv` to text, "" where something is not known. A row that
lacks what a prediction needs, or contradicts itself, is left out with a reason.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.parallelism.hardware import FAMILIES, GENERATIONS, GpuClass, gpu_class
from wattmesh.policies.parallelism.model_shape import ModelShape
from wattmesh.policies.parallelism.presets import preset
from wattmesh.policies.parallelism.setups import (
    BF16,
    FP4,
    FP8,
    FULL,
    NONE,
    SELECTIVE,
    HardwareColumns,
    LayoutColumns,
    Setups,
    WorkColumns,
)

T = TypeVar("T")
Row: TypeAlias = Mapping[str, str]

NEEDED = (
    *("layers", "hidden", "heads", "vocab", "seq_len", "gpu", "num_gpus"),
    *("tp", "pp", "micro_batch", "global_batch"),
)
FORMATS = {"fp4": FP4, "fp8": FP8, "float8": FP8, "16": BF16}
"""By what the name of a number format contains; the first that does counts."""

SAME_FORMAT = {"fp8-mx": "mxfp8", "fp8-cs": "fp8", "float8": "fp8"}
"""Names of one number format in different releases of one software."""

LARGEST = 1e9
"""Above this no size of a model or cluster is believed."""

UNFUSED = ("Megatron-LM 2021", "Megatron-LM 2022", "Megatron-DeepSpeed")
"""Software that writes attention scores to memory and keeps all positions on each tp rank."""

UNFUSED_PASSES = (*UNFUSED, "llm-foundry")
"""Software whose norms, activations and residuals are kernels of their own."""

CAPTURED = {"NeMo MLPerf": 0.85, "Megatron-Bridge": 0.7}
"""Share of a step's kernels that software starts as CUDA graphs: of the second on GB200 and GB300
only, where its recipes capture attention and routing (its scripts/performance)."""

SHOWN = 40
"""Characters of a wrong value that a reason quotes."""

RELEASE = re.compile(r"(?<!\d)(\d\d)\.(\d\d)(?:\.(\d\d))?(?!\d)")


PLACES = 13
"""Numbers in `Tags.place`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """What the physics does not know of a run, and its residual may depend on.

    Attributes:
        model, gpu, number_format: by name. `software`: without its release.
        release_years: the release, in years; 0 where none is named.
        has_experts: 1 or 0.
        place: the layout and the sizes, each as a logarithm; shape (PLACES,).
    """

    model: str
    gpu: str
    software: str
    number_format: str
    release_years: float
    has_experts: float
    place: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRows:
    """The rows that can be predicted, in order, and why others cannot.

    Attributes:
        setups: columns of the rows in `kept`. `tags`: one for each of them.
        kept: indices into the rows. `excluded`: by index, why a row was left out.
    """

    setups: Setups
    tags: tuple[Tags, ...]
    kept: NDArray[np.int64]
    excluded: Mapping[int, str]


class _RowInvalid(ValueError):
    """A row cannot be predicted; the message says why."""


def _number(row: Row, name: str, default: float | None = None) -> float:
    """Read a number that is not negative.

    Raises:
        _RowInvalid: it is missing without a default, or is no such number.
    """
    text = (row.get(name) or "").strip()
    if not text:
        if default is None:
            raise _RowInvalid(f"{name} is missing")
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= LARGEST:
        raise _RowInvalid(f"{name} must be a number from 0 to 1e9, not {text[:SHOWN]!r}")
    return number


def _degree(row: Row, name: str, default: float = 1.0) -> float:
    """Read a degree: a whole number from 1.

    Raises:
        _RowInvalid: it is none.
    """
    number = _number(row, name, default)
    if number < 1 or number != math.floor(number):
        text = (row.get(name) or "").strip()
        raise _RowInvalid(f"{name} must be a whole number from 1, not {text[:SHOWN]!r}")
    return number


def _count(row: Row, name: str) -> float:
    """Read a whole number; 0 where there is none.

    Raises:
        _RowInvalid: it is none.
    """
    number = _number(row, name, 0.0)
    if number != math.floor(number):
        raise _RowInvalid(f"{name} must be a whole number, not {number:g}")
    return number


def _gated(row: Row) -> float:
    """Read whether a feed-forward part has three matrices.

    Raises:
        _RowInvalid: it is neither 0 nor 1.
    """
    gated = _number(row, "gated_mlp", 1.0)
    if gated not in (0, 1):
        raise _RowInvalid(f"gated_mlp must be 0 or 1, not {gated:g}")
    return gated


def _shape(row: Row) -> ModelShape:
    """Read the model; what no column says comes from the preset of its name.

    Raises:
        _RowInvalid: it has neither a dense width nor experts, or a size of 0.
    """
    known = preset(row.get("model") or "")
    layers, hidden, heads = (_degree(row, name, 0.0) for name in ("layers", "hidden", "heads"))
    experts, topk = _count(row, "experts"), _count(row, "topk")
    expert_ffn = _number(row, "moe_ffn", 0.0)
    ffn = _number(row, "ffn", 0.0)
    if experts and not (topk and expert_ffn):
        raise _RowInvalid("a model with experts needs topk and moe_ffn")
    if topk > experts:
        raise _RowInvalid(f"topk is {topk:g}, of {experts:g} experts")
    if not experts and not ffn:
        raise _RowInvalid("ffn is missing")
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_degree(row, "kv_heads", heads),
        head_width=hidden / heads,
        ffn=ffn,
        vocab=_degree(row, "vocab"),
        gated=_gated(row),
        experts=experts,
        topk=topk,
        expert_ffn=expert_ffn,
    )
    if known is None or bool(known.experts) != bool(experts):
        return shape
    return replace(
        shape,
        head_width=known.head_width,
        shared_ffn=known.shared_ffn,
        dense_layers=math.ceil(float(known.dense_layers) * layers / float(known.layers))
        if ffn
        else 0.0,
        latent=known.latent,
        window=known.window,
    )


def _disagreements(shape: ModelShape, layout: LayoutColumns, work: WorkColumns) -> Iterator[str]:
    """Say in what ways a layout cannot be a layout of this model and batch."""
    tp, pp, ep = layout.tp, layout.pp, layout.ep
    ranks = np.asarray(tp) * layout.cp * layout.dp
    if pp > shape.layers:
        yield f"pp is {pp:g}, of {shape.layers:g} layers"
    if shape.heads % tp:
        yield f"tp = {tp:g} does not divide {shape.heads:g} heads"
    if shape.experts % ep:
        yield f"ep = {ep:g} does not divide {shape.experts:g} experts"
    if ranks % ep:
        yield f"ep = {ep:g} does not divide the {ranks:g} GPUs of a pipeline stage"
    once = np.asarray(layout.dp) * layout.micro_batch
    if once > work.global_batch:
        yield f"dp * micro_batch = {once:g} is more than global_batch, {work.global_batch:g}"


def _hardware(row: Row) -> GpuClass:
    try:
        return gpu_class(row.get("gpu") or "")
    except KeyError as error:
        raise _RowInvalid(str(error.args[0])) from None


def _layout(row: Row) -> LayoutColumns:
    """Read the layout; the data-parallel degree follows from the others.

    Raises:
        _RowInvalid: the degrees do not multiply to the GPUs.
    """
    gpus = _degree(row, "num_gpus")
    tp, pp, cp, ep = (_degree(row, name) for name in ("tp", "pp", "cp", "ep"))
    dp = gpus / (tp * pp * cp)
    if dp != math.floor(dp):
        raise _RowInvalid(f"tp * pp * cp = {tp * pp * cp:g} does not divide {gpus:g} GPUs")
    zero = _number(row, "zero", 1.0)
    if zero not in (0, 1, 2, 3):
        raise _RowInvalid(f"zero must be 0, 1, 2 or 3, not {zero:g}")
    recompute = (row.get("recompute") or "").strip().lower() or "none"
    levels = {"none": NONE, "selective": SELECTIVE, "full": FULL}
    if recompute not in levels:
        raise _RowInvalid(f"recompute must be none, selective or full, not {recompute[:SHOWN]!r}")
    return LayoutColumns(
        gpus=gpus,
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        chunks=_degree(row, "vpp"),
        zero=zero,
        micro_batch=_degree(row, "micro_batch"),
        recompute=levels[recompute],
    )


def _precision(row: Row) -> str:
    return (row.get("precision") or "").strip().lower() or "bf16"


def _work(row: Row) -> WorkColumns:
    """Read what a step trains.

    Raises:
        _RowInvalid: a size of it is missing, or nothing is known of its number format.
    """
    software = (row.get("framework") or "").strip()
    number_format = next(
        (found for part, found in FORMATS.items() if part in _precision(row)), None
    )
    if number_format is None:
        raise _RowInvalid(
            f"precision must be a 16, 8 or 4 bit format, not {_precision(row)[:SHOWN]!r}"
        )
    unfused = software.startswith(UNFUSED)
    return WorkColumns(
        global_batch=_degree(row, "global_batch"),
        seq_len=_degree(row, "seq_len"),
        number_format=float(number_format),
        sequence_parallel=float(not unfused),
        fused_attention=float(not unfused),
        fused_passes=float(not software.startswith(UNFUSED_PASSES)),
        frozen_base=float("LoRA" in (row.get("notes") or "")),
        captured=_captured(software, row.get("gpu") or ""),
    )


def _captured(software: str, gpu: str) -> float:
    known = next((share for name, share in CAPTURED.items() if software.startswith(name)), 0.0)
    return known if gpu.startswith("GB") or not software.startswith("Megatron") else 0.0


def place_of(shape: ModelShape, layout: LayoutColumns, work: WorkColumns) -> tuple[float, ...]:
    """Give `Tags.place` of one configuration."""
    batches = _one(work.global_batch) / (_one(layout.dp) * _one(layout.micro_batch))
    scaled = (
        (layout.gpus, 3),
        (layout.tp, 1.5),
        (layout.pp, 1.5),
        (layout.chunks, 2),
        (layout.cp, 1.5),
        (layout.ep, 2),
        (layout.micro_batch, 1.5),
        (work.seq_len, 2),
        (max(1.0, batches), 2.5),
        (shape.layers, 2),
        (shape.hidden, 2),
    )
    place = tuple(math.log2(_one(value)) / scale for value, scale in scaled)
    return (*place, _one(layout.zero) / 2, _one(layout.recompute) / 1.5)


def _one(value: object) -> float:
    """Take the one entry of a column, or a plain number."""
    return float(np.asarray(value).reshape(-1)[0])


def _tags(row: Row, gpu: str, shape: ModelShape, layout: LayoutColumns, work: WorkColumns) -> Tags:
    software = (row.get("framework") or "").strip()
    named = RELEASE.search(software)
    years = 0.0
    if named:
        year, month, patch = (int(part or 0) for part in named.groups())
        years = year + month / 12 + patch / 40
    return Tags(
        model=(row.get("model") or "").strip().lower(),
        gpu=gpu,
        software=RELEASE.sub("", software).strip(" /"),
        number_format=SAME_FORMAT.get(_precision(row), _precision(row)),
        release_years=years,
        has_experts=float(bool(shape.experts)),
        place=place_of(shape, layout, work),
    )


def read_rows(rows: Sequence[Row]) -> TrainingRows:
    """Read rows; those that cannot be predicted are left out, each with a reason."""
    kept: list[int] = []
    excluded: dict[int, str] = {}
    parts: list[tuple[ModelShape, GpuClass, LayoutColumns, WorkColumns, Tags]] = []
    for index, row in enumerate(rows):
        try:
            for name in NEEDED:
                if not (row.get(name) or "").strip():
                    raise _RowInvalid(f"{name} is missing")
            gpu, shape = _hardware(row), _shape(row)
            layout, work = _layout(row), _work(row)
            for why in _disagreements(shape, layout, work):
                raise _RowInvalid(why)
        except _RowInvalid as error:
            excluded[index] = str(error)
            continue
        parts.append((shape, gpu, layout, work, _tags(row, gpu.name, shape, layout, work)))
        kept.append(index)
    return TrainingRows(
        setups=Setups(
            shape=_columns(ModelShape, [each[0] for each in parts]),
            hardware=hardware_columns([each[1] for each in parts]),
            layout=_columns(LayoutColumns, [each[2] for each in parts]),
            work=_columns(WorkColumns, [each[3] for each in parts]),
        ),
        tags=tuple(each[4] for each in parts),
        kept=np.array(kept, dtype=np.int64),
        excluded=excluded,
    )


def _columns(kind: type[T], entries: Sequence[T]) -> T:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type] # dataclasses only
    return kind(
        **{name: np.array([float(getattr(each, name)) for each in entries]) for name in names}
    )


def hardware_columns(classes: Sequence[GpuClass]) -> HardwareColumns:
    """Turn GPU classes into columns."""
    names = [field.name for field in fields(HardwareColumns)]
    numbers = {
        name: np.array([float(getattr(each, name)) for each in classes])
        for name in names
        if name not in ("family", "generation")
    }
    family = np.array([FAMILIES.index(each.family) for each in classes], dtype=np.int64)
    generation = [GENERATIONS.index(each.generation) for each in classes]
    return HardwareColumns(
        family=family, generation=np.array(generation, dtype=np.int64), **numbers
    )


def take(setups: Setups, which: NDArray[np.int64] | NDArray[np.bool_]) -> Setups:
    """Choose configurations; every column must be an array."""
    return Setups(
        shape=_chosen(setups.shape, which),
        hardware=_chosen(setups.hardware, which),
        layout=_chosen(setups.layout, which),
        work=_chosen(setups.work, which),
    )


def take_layouts(layout: LayoutColumns, which: NDArray[np.int64]) -> LayoutColumns:
    """Choose layouts."""
    return _chosen(layout, which)


def _chosen(columns: T, which: NDArray[np.int64] | NDArray[np.bool_]) -> T:
    names = [field.name for field in fields(columns)]  # type: ignore[arg-type]
    return replace(columns, **{name: getattr(columns, name)[which] for name in names})  # type: ignore[type-var]
