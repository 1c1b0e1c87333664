"""Rows of measured, or asked, configurations as columns of the cost model. Pure.

A row maps the columns of `train_configs.csv` to text, "" where something is not known. A row that
lacks what a prediction needs, or contradicts itself, is left out with a reason.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.parallelism.hardware import FAMILIES, GENERATIONS, GpuClass, gpu_class
from wattmesh.policies.parallelism.model_shape import ModelShape
from wattmesh.policies.parallelism.presets import preset, preset_of_sizes
from wattmesh.policies.parallelism.row_fields import (
    SHOWN,
    Row,
    RowInvalid,
    count_of,
    degree_of,
    number_of,
    text_of,
)
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
NEEDED = (
    *("layers", "hidden", "heads", "vocab", "seq_len", "gpu", "num_gpus"),
    *("tp", "pp", "micro_batch", "global_batch"),
)
FORMATS = {"fp4": FP4, "fp8": FP8, "float8": FP8, "16": BF16}
"""By what the name of a number format contains; the first that does counts."""

SAME_FORMAT = {"fp8-mx": "mxfp8", "fp8-cs": "fp8", "float8": "fp8"}
"""Names of one number format in different releases of one software."""

TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
STAGES = {"fsdp": 3.0, "fsdp2": 3.0, "hsdp": 3.0, "ddp": 0.0} | {
    f"{name}{stage}": float(stage) for name in ("zero-", "zero", "stage") for stage in range(4)
}
RECOMPUTED = {
    **dict.fromkeys(("none", "no", "false", "off", "0"), NONE),
    **dict.fromkeys(("selective", "core_attn", "core-attn"), SELECTIVE),
    **dict.fromkeys(("full", "true", "block", "uniform"), FULL),
}
"""Other words for truths, stages of ZeRO and what is computed again."""

UNFUSED = ("megatron-lm 2021", "megatron-lm 2022", "megatron-deepspeed")
"""Software, in small letters, that writes attention scores to memory and keeps all positions on
each tp rank."""

UNFUSED_PASSES = (*UNFUSED, "llm-foundry")
"""Software whose norms, activations and residuals are kernels of their own."""

CAPTURED = {"nemo mlperf": 0.85, "megatron-bridge": 0.7}
"""Share of a step's kernels that software starts as CUDA graphs: of the second on GB200 and GB300
only, where its recipes capture attention and routing (its scripts/performance)."""

RELEASE = re.compile(r"(?<!\d)(\d\d)\.(\d\d)(?:\.(\d\d))?(?!\d)")
"""A release of software in its own name: year, month, patch."""

NAMED_RELEASE = re.compile(r"(?:\bv|ngc|NeMo )([23]\d)\.(0[1-9]|1[0-2])(?:\.(\d\d))?(?!\d)")
"""The same in other text, where a bare number may be anything."""

OTHER_SOFTWARE = ("maxtext",)
"""Programs that notes name and that the column of the framework does not."""

PLACES = 13
"""Numbers in `Tags.place`."""

PHASES = 4
"""Products, memory, communication that is seen, waiting (`step_time.StepTime`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """What the physics does not know of a run, and its residual may depend on.

    Attributes:
        model: by its sizes. `gpu`, `number_format`: by name. `software`: without its release.
        release_years: the release, in years; 0 where none is named.
        has_experts: 1 or 0.
        place: the layout and the sizes, each as a logarithm; shape (PLACES,).
        phases: shares of a step, as predicted; equal until it is; shape (PHASES,).
    """

    model: str
    gpu: str
    software: str
    number_format: str
    release_years: float
    has_experts: float
    place: tuple[float, ...]
    phases: tuple[float, ...] = (1 / PHASES,) * PHASES


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


def _gated(row: Row) -> float:
    """Read whether a feed-forward part has three matrices.

    Raises:
        RowInvalid: it is neither 0 nor 1.
    """
    said = TRUTHS.get(text_of(row, "gated_mlp").lower())
    gated = number_of(row, "gated_mlp", 1.0) if said is None else said
    if gated not in (0, 1):
        raise RowInvalid(f"gated_mlp must be 0 or 1, not {gated:g}")
    return gated


def _shape(row: Row) -> ModelShape:
    """Read the model; what no column says comes from the preset of its name.

    Raises:
        RowInvalid: it has neither a dense width nor experts, or a size of 0.
    """
    layers, hidden, heads = (degree_of(row, name, 0.0) for name in ("layers", "hidden", "heads"))
    experts, topk = count_of(row, "experts"), count_of(row, "topk")
    expert_ffn = number_of(row, "moe_ffn", 0.0)
    ffn = number_of(row, "ffn", 0.0)
    if experts and not (topk and expert_ffn):
        raise RowInvalid("a model with experts needs topk and moe_ffn")
    if topk > experts:
        raise RowInvalid(f"topk is {topk:g}, of {experts:g} experts")
    if not experts and not ffn:
        raise RowInvalid("ffn is missing")
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=degree_of(row, "kv_heads", heads),
        head_width=hidden / heads,
        ffn=ffn,
        vocab=degree_of(row, "vocab"),
        gated=_gated(row),
        experts=experts,
        topk=topk,
        expert_ffn=expert_ffn,
    )
    known = preset(text_of(row, "model")) or preset_of_sizes(shape)
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


BESIDE_LAYERS = 2
"""Embedding and loss may take the place of a layer each (Megatron's 405B: 126 in 16 * 8)."""


def _disagreements(shape: ModelShape, layout: LayoutColumns, work: WorkColumns) -> Iterator[str]:
    """Say in what ways a layout cannot be a layout of this model and batch."""
    tp, pp, ep = layout.tp, layout.pp, layout.ep
    ranks = np.asarray(tp) * layout.cp * layout.dp
    if pp > shape.layers:
        yield f"pp is {pp:g}, of {shape.layers:g} layers"
    elif pp * layout.chunks > np.asarray(shape.layers) + BESIDE_LAYERS:
        yield f"pp * vpp is {pp * layout.chunks:g}, of {shape.layers:g} layers"
    if shape.heads % shape.kv_heads:
        yield f"kv_heads = {shape.kv_heads:g} does not divide {shape.heads:g} heads"
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
        raise RowInvalid(str(error.args[0])) from None


def _layout(row: Row) -> LayoutColumns:
    """Read the layout; the data-parallel degree follows from the others.

    Raises:
        RowInvalid: the degrees do not multiply to the GPUs.
    """
    gpus = degree_of(row, "num_gpus")
    tp, pp, cp, ep = (degree_of(row, name) for name in ("tp", "pp", "cp", "ep"))
    dp = gpus / (tp * pp * cp)
    if dp != math.floor(dp):
        raise RowInvalid(f"tp * pp * cp = {tp * pp * cp:g} does not divide {gpus:g} GPUs")
    zero = _zero(row)
    recompute = text_of(row, "recompute").lower() or "none"
    if recompute not in RECOMPUTED:
        raise RowInvalid(f"recompute must be none, selective or full, not {recompute[:SHOWN]!r}")
    return LayoutColumns(
        gpus=gpus,
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        chunks=degree_of(row, "vpp"),
        zero=zero,
        micro_batch=degree_of(row, "micro_batch"),
        recompute=RECOMPUTED[recompute],
    )


def _zero(row: Row) -> float:
    """Read the stage of ZeRO.

    Raises:
        RowInvalid: it is none.
    """
    said = STAGES.get(text_of(row, "zero").lower())
    zero = number_of(row, "zero", 1.0) if said is None else said
    if zero not in (0, 1, 2, 3):
        raise RowInvalid(f"zero must be 0, 1, 2 or 3, not {zero:g}")
    return zero


def _precision(row: Row) -> str:
    return text_of(row, "precision").lower() or "bf16"


def _notes(row: Row) -> str:
    return text_of(row, "notes").lower()


def _work(row: Row) -> WorkColumns:
    """Read what a step trains.

    Raises:
        RowInvalid: a size of it is missing, or nothing is known of its number format.
    """
    software = text_of(row, "framework").lower()
    number_format = next(
        (found for part, found in FORMATS.items() if part in _precision(row)), None
    )
    if number_format is None:
        raise RowInvalid(
            f"precision must be a 16, 8 or 4 bit format, not {_precision(row)[:SHOWN]!r}"
        )
    unfused = software.startswith(UNFUSED)
    return WorkColumns(
        global_batch=degree_of(row, "global_batch"),
        seq_len=degree_of(row, "seq_len"),
        number_format=float(number_format),
        sequence_parallel=float(not unfused),
        fused_attention=float(not unfused),
        fused_passes=float(not software.startswith(UNFUSED_PASSES)),
        frozen_base=float("lora" in _notes(row)),
        dropped_tokens=float("tokendrop" in _notes(row)),
        captured=_captured(software, _hardware(row).name),
    )


def _captured(software: str, gpu: str) -> float:
    known = next((share for name, share in CAPTURED.items() if software.startswith(name)), 0.0)
    return known if gpu.startswith("gb") or not software.startswith("megatron") else 0.0


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


def architecture(shape: ModelShape) -> str:
    """Name a model by its sizes, whatever it is called and however many layers it has."""
    sizes = (
        *(shape.hidden, shape.heads, shape.kv_heads, shape.ffn, shape.gated, shape.vocab),
        *(shape.experts, shape.topk, shape.expert_ffn),
    )
    return " ".join(f"{_one(size):g}" for size in sizes)


def _release_years(row: Row) -> float:
    """Read the software's release, in years: of its name, else of what is said about the run."""
    found = RELEASE.search(row.get("framework") or "")
    for column in ("notes", "source"):
        found = found or NAMED_RELEASE.search(row.get(column) or "")
    if found is None:
        return 0.0
    year, month, patch = (int(part or 0) for part in found.groups())
    return year + month / 12 + patch / 40


def _tags(row: Row, gpu: str, shape: ModelShape, layout: LayoutColumns, work: WorkColumns) -> Tags:
    software = text_of(row, "framework").lower()
    named = next((name for name in OTHER_SOFTWARE if name in _notes(row)), software)
    return Tags(
        model=architecture(shape),
        gpu=gpu,
        software=RELEASE.sub("", named).strip(" /"),
        number_format=SAME_FORMAT.get(_precision(row), _precision(row)),
        release_years=_release_years(row),
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
                if not text_of(row, name):
                    raise RowInvalid(f"{name} is missing")
            gpu, shape = _hardware(row), _shape(row)
            layout, work = _layout(row), _work(row)
            for why in _disagreements(shape, layout, work):
                raise RowInvalid(why)
        except RowInvalid as error:
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
