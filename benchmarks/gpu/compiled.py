"""torch.compile of the example's model: what the first step costs, cold and warm, and what it buys.

cold      nothing compiled before: the caches begin empty
warm      another process, the same caches
again     the same process after `forget_compiled`, as a switch does it, and a model built anew

Each case is a process of its own, so that imports and the device's start are equal for all.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.chosen import Chosen
from benchmarks.gpu.train import LARGE, TINY, draw_on_device, one_rank, precision, step, whole_batch
from benchmarks.report import Report
from examples.pretrain.train import build_state
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.torch_compat import forget_compiled

STEPS = 20
COMPUTED_IN = "bf16 autocast"
PATIENCE_S = 300.0


def built(device: str, *, compiled: bool) -> State:
    """Build the model, compiled when it is first used or not at all."""
    config = replace(LARGE if device == "cuda" else TINY, ema_decay=0.0)
    state = build_state(config, whole_batch(config), device=device, fresh=False)
    draw_on_device(state)
    if compiled:
        for module in state.modules:
            module.compile()
    return state


def steps(state: State, device: str) -> dict[str, Any]:
    """Train a few steps; seconds of the first, the second, and the mean of the rest."""
    tokens = state.parts.config.tokens_per_step
    with precision(COMPUTED_IN if device == "cuda" else "fp32") as computing:
        seconds = []
        for _ in range(STEPS):
            began_s = time.monotonic()
            with computing:
                step(state)
            seconds.append(time.monotonic() - began_s)
    rest_s = sum(seconds[2:]) / len(seconds[2:])
    return {
        "first_step_s": seconds[0],
        "second_step_s": seconds[1],
        "later_step_s": rest_s,
        "tokens_per_s": tokens / rest_s,
    }


def child(case: str, device: str) -> None:
    """Run one case in this process; its rows go to stdout as JSON."""
    rows = []
    with one_rank(device):
        state = built(device, compiled=case != "not compiled")
        rows.append({"case": case, **steps(state, device)})
        if case == "warm":
            state.close()
            forget_compiled()
            del state
            gc.collect()
            state = built(device, compiled=True)
            rows.append({"case": "again, as after a switch", **steps(state, device)})
        state.close()
    print(json.dumps(rows))


def case_rows(case: str, device: str, caches: Path) -> list[dict[str, Any]]:
    """Run one case in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.compiled", "--case", case, "--device", device],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no words"])[-1]
        return [{"case": case, "note": f"ended with status {done.returncode}: {words[:300]}"}]
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(chosen: Chosen) -> Report:
    """Measure a model that is not compiled, then cold, warm and again."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="wattmesh-compiled-") as name:
        for case in ("not compiled", "cold", "warm"):
            rows += case_rows(case, chosen.device, Path(name))
    computed = COMPUTED_IN if chosen.device == "cuda" else "fp32"
    return Report(
        benchmark="compiled", rows=tuple({"computed_in": computed, **row} for row in rows), goals=()
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True)
    parser.add_argument("--device", default="cuda")
    chosen_here = parser.parse_args()
    torch.set_num_threads(1)
    child(chosen_here.case, chosen_here.device)
