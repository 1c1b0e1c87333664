"""llm-analysis over configurations, in an interpreter of its own (`benchmarks.cost_model.peer`).

    PYTHON benchmarks/cost_model/llm_analysis_peer.py < CASES > SECONDS

PYTHON has llm-analysis 0.2.2 (`make peers`) and nothing of ours, so this imports nothing of ours.
Reads a JSON list of cases on stdin, and prints a JSON list: for each {"seconds": of a step,
"took_s": to compute it}, or {"why": "..."} where the tool refused.
"""

import json
import logging
import sys
import time
from typing import Any

logging.disable(logging.CRITICAL)

from llm_analysis.analysis import (  # type: ignore[import-not-found] # noqa: E402
    ActivationRecomputation,
    DSZeRO,
    LLMAnalysis,
)
from llm_analysis.config import (  # type: ignore[import-not-found] # noqa: E402
    GPUConfig,
    ModelConfig,
    ParallelismConfig,
)


def seconds(case: dict[str, Any]) -> float:
    """Compute a step. Nothing is refused for memory: the runs were measured, so they fit."""
    model = ModelConfig(**case["model"], name="asked", max_seq_len=case["seq_len"])
    gpu = GPUConfig(
        **case["gpu"],
        name="asked",
        mem_per_GPU_in_GB=1e6,
        intra_node_min_message_latency=8e-6,
    )
    analysis = LLMAnalysis(
        model,
        gpu,
        parallelism_config=ParallelismConfig(**case["layout"]),
        flops_efficiency=case["efficiency"],
    )
    found = analysis.training(
        batch_size_per_gpu=case["micro_batch"],
        global_batch_size=case["global_batch"],
        seq_len=case["seq_len"],
        activation_recomputation=ActivationRecomputation(case["recompute"]),
        ds_zero=DSZeRO(case["zero"]),
        flash_attn=case["flash"],
        mlp_gated_linear_units=case["gated"],
    )
    return float(found["latency_per_iter"])


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Compute one case, or say why the tool could not."""
    began = time.perf_counter()
    try:
        found = seconds(case)
    except Exception as error:  # the tool asserts, divides by zero and more
        return {"why": f"{type(error).__name__}: {error}"[:200]}
    return {"seconds": found, "took_s": time.perf_counter() - began}


if __name__ == "__main__":
    json.dump([answer(case) for case in json.load(sys.stdin)], sys.stdout)
