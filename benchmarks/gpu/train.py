"""Tokens per second and per joule of the example trainer on one GPU, by batch and precision.

The trainer is the example's, unswitched and without a session; its parameters, AdamW's moments and
their average stay in fp32 (fp64 where that is the precision). Joules are the board's own counter,
looked at ten times a second over the steps that are counted, with the bound that `burst` gives.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.chosen import Chosen
from benchmarks.gpu.machine import measured_uuid
from benchmarks.report import Report
from examples.pretrain.config import ModelConfig, TrainConfig
from examples.pretrain.train import build_state, train_step
from wattmesh.errors import SourceUnavailable
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State
from wattmesh.telemetry.energy.burst import Burst, Figure
from wattmesh.telemetry.sources.nvml import Nvml, NvmlFailed
from wattmesh.telemetry.sources.nvml_source import NvmlSource

LARGE = TrainConfig(
    model=ModelConfig(dim=2048, layers=8, heads=16, kv_heads=8, hidden=5632, seq_len=1024),
    global_batch=8,
    corpus_bytes=1 << 18,
)
"""0.38 G parameters, 6 GB of state in fp32: large enough to fill a GPU's multiprocessors."""
TINY = TrainConfig(
    model=ModelConfig(dim=128, layers=2, heads=4, kv_heads=2, hidden=384, seq_len=64),
    global_batch=8,
    corpus_bytes=1 << 16,
)

PRECISIONS = {
    "fp64": "fp64",
    "fp32": "fp32",
    "tf32 products": "fp32",
    "bf16 autocast": "fp32",
}
"""What is computed in, and what the parameters are kept in."""
BATCHES = (1, 8, 32)
WARM_STEPS = 3
COUNTED_S = 6.0


def whole_batch(config: TrainConfig) -> Layout:
    """One rank, one microbatch."""
    return Layout(micro_batch=config.global_batch)


def draw_on_device(state: State, seed: int = 0) -> None:
    """Give parameters random values where they are: zeros would draw less power."""
    parameters = state.parameters()
    generator = torch.Generator(parameters[0].device).manual_seed(seed)
    with torch.no_grad():
        for each in parameters:
            if each.dim() > 1:
                each.normal_(0, 0.02, generator=generator)
            else:
                each.fill_(1)
        for averages in state.averages.values():
            for average in averages.values():
                average.zero_()


def step(state: State) -> None:
    """Train one step, and move on as the session would."""
    done = train_step(state)
    before = state.position
    state.position = Position(
        step=before.step + 1,
        samples=before.samples + done.samples,
        tokens=before.tokens + done.tokens,
    )


@contextmanager
def precision(name: str) -> Iterator[AbstractContextManager[Any]]:
    """Compute in a precision; gives the context that each step runs in."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32 products" else "highest")
    try:
        yield torch.autocast("cuda", torch.bfloat16) if "bf16" in name else nullcontext()
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def one_rank(device: str) -> Iterator[None]:
    """This process as the only rank of a group."""
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        init_method="tcp://127.0.0.1:0",
        rank=0,
        world_size=1,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


class Meter:
    """The board's counter over a stretch of steps; without a board nothing is known."""

    def __init__(self, chosen: Chosen) -> None:
        """Find the board that is trained on."""
        self._source = NvmlSource(chosen.library)
        self.uuid = ""
        try:
            with Nvml.open(chosen.library) as nvml:
                self.uuid = measured_uuid(nvml, chosen)
        except (NvmlFailed, SourceUnavailable):
            pass

    def looking(self) -> Burst:
        """Look, until the context is left."""
        return Burst(self._source, [self.uuid])

    def figure(self, looking: Burst, start_s: float, end_s: float) -> Figure | None:
        """What the board drew; None where nobody could look."""
        return looking.figures(start_s, end_s).get(self.uuid)

    def close(self) -> None:
        """Let go of the board."""
        self._source.close()


def trained(
    config: TrainConfig, name: str, chosen: Chosen, meter: Meter
) -> dict[str, float | int | str | None]:
    """Train one precision at one batch; gives its row."""
    device = chosen.device
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    state = build_state(config, whole_batch(config), device=device, fresh=False)
    draw_on_device(state)
    count = sum(each.numel() for each in state.parameters())
    with precision(name) as computing, meter.looking() as looking:
        for _ in range(WARM_STEPS):
            with computing:
                step(state)
        steps, start_s = 0, time.monotonic()  # a step ends with its loss on the host
        while time.monotonic() - start_s < chosen.seconds(COUNTED_S):
            with computing:
                step(state)
            steps += 1
        end_s = time.monotonic()
        time.sleep(0.3)  # a look lies behind the window
    drawn = meter.figure(looking, start_s, end_s)
    tokens = steps * config.tokens_per_step
    energy_j = drawn.energy_j if drawn else None
    return {
        "steps": steps,
        "tokens_per_s": tokens / (end_s - start_s),
        "model_tflops": 6 * count * tokens / (end_s - start_s) / 1e12,
        "power_w": drawn.power_w if drawn else None,
        "tokens_per_j": tokens / energy_j if energy_j else None,
        "bound_share": drawn.error_share if drawn else None,
        "sensor": drawn.quality if drawn else None,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
    }


def measure(chosen: Chosen) -> Report:
    """Measure every precision at every batch."""
    rows: list[dict[str, Any]] = []
    base = TINY if chosen.device == "cpu" else LARGE
    meter = Meter(chosen)
    with one_rank(chosen.device):
        for name, dtype in PRECISIONS.items():
            for batch in BATCHES:
                config = replace(base, dtype=dtype, global_batch=batch)
                row: dict[str, Any] = {"computed_in": name, "batch": batch}
                row["tokens_per_step"] = config.tokens_per_step
                try:
                    row |= trained(config, name, chosen, meter)
                except torch.OutOfMemoryError:
                    row["note"] = "does not fit into the device's memory"
                rows.append(row)
                gc.collect()
                if chosen.device == "cuda":
                    torch.cuda.empty_cache()
    meter.close()
    return Report(benchmark="train", rows=tuple(rows), goals=())
