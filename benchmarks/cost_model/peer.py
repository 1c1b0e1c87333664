"""llm-analysis 0.2.2 beside the cost model, on the measured runs that it can express.

It expresses dense models in 16 bits, without context parallelism, interleaved pipelines and
adapters. It has no fitted numbers but one, the share of peak that products reach: it is run at its
default, 1, and at 0.5, which its own examples use. Where it is not installed (`make peers` does it)
the rows say so, and nothing else changes.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.cost_model.folds import RowOut, Runs, Scored, percent
from wattmesh.policies.parallelism.setups import BF16, Setups

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = REPOSITORY / ".venv" / "peers" / "llm-analysis" / "bin" / "python"
PROGRAM = Path(__file__).with_name("llm_analysis_peer.py")
EFFICIENCIES = (1.0, 0.5)
NODE = 8
LIMIT_S = 600
"""Some 0.1 s for each run and efficiency, on a busy machine more."""


def expressible(setups: Setups) -> NDArray[np.bool_]:
    """Choose the runs that the tool has words for."""
    work, layout, shape = setups.work, setups.layout, setups.shape
    dense = np.asarray(shape.experts) == 0
    plain = (np.asarray(work.number_format) == BF16) & (np.asarray(work.frozen_base) == 0)
    short = (np.asarray(layout.cp) == 1) & (np.asarray(layout.chunks) == 1)
    return np.asarray(dense & plain & short, dtype=bool)


def case(setups: Setups, at: int, efficiency: float) -> RowOut:
    """Say one run in the tool's words."""

    def of(column: object) -> float:
        return float(np.asarray(column)[at])

    def whole(column: object) -> int:
        return round(of(column))

    shape, layout, work, gpu = setups.shape, setups.layout, setups.work, setups.hardware
    tp = whole(layout.tp)
    return {
        "model": {
            "num_layers": whole(shape.layers),
            "n_head": whole(shape.heads),
            "hidden_dim": whole(shape.hidden),
            "vocab_size": whole(shape.vocab),
            "num_key_value_heads": whole(shape.kv_heads),
            "ffn_embed_dim": whole(shape.ffn),
        },
        "gpu": {
            "hbm_bandwidth_in_GB_per_sec": of(gpu.memory_bytes_per_s) / 1e9,
            "intra_node_bandwidth_in_GB_per_sec": of(gpu.link_bytes_per_s) / 1e9,
            "inter_node_bandwidth_in_GB_per_sec": NODE * of(gpu.network_bytes_per_s) / 1e9,
            "peak_fp16_TFLOPS": of(gpu.matmul_flops) / 1e12,
        },
        "layout": {
            "tp_size": tp,
            "pp_size": whole(layout.pp),
            "dp_size": whole(layout.dp),
            "sp_size": tp if of(work.sequence_parallel) else 1,
        },
        "micro_batch": whole(layout.micro_batch),
        "global_batch": whole(work.global_batch),
        "seq_len": whole(work.seq_len),
        "recompute": whole(layout.recompute),
        "zero": whole(layout.zero),
        "flash": bool(of(work.fused_attention)),
        "gated": bool(of(shape.gated)),
        "efficiency": efficiency,
    }


def ask(cases: Sequence[RowOut], python: Path = PYTHON) -> list[RowOut] | str:
    """Let the tool compute cases; a text says why it could not."""
    if not python.exists():
        return "llm-analysis is not installed; `make peers` does it"
    try:
        done = subprocess.run(
            [python, PROGRAM],
            input=json.dumps(list(cases)),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        answers = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"llm-analysis took more than {LIMIT_S} s"
    except ValueError:
        return f"llm-analysis failed: {done.stderr.strip()[-200:]}"
    return list(answers)


def beside(scored: Scored, runs: Runs, python: Path = PYTHON) -> list[RowOut]:
    """Compare both on the judged runs that the tool can express; ours are `scored`, left out."""
    setups = runs.measured.rows.setups
    chosen = np.flatnonzero(expressible(setups) & runs.judged)
    told: list[RowOut] = []
    both = chosen
    for efficiency in EFFICIENCIES:
        name = f"llm-analysis 0.2.2, {efficiency:g} of peak"
        found = ask([case(setups, int(at), efficiency) for at in chosen], python)
        if isinstance(found, str):
            return [{"beside": name, "of": len(chosen), "not_run": found}]
        answered = np.array([bool(each.get("seconds", 0) > 0) for each in found], dtype=bool)
        seconds = np.array([each.get("seconds", np.nan) for each in found])[answered]
        both = chosen[answered]
        took = [each["took_s"] for each in found if "took_s" in each]
        told.append(
            {
                "beside": name,
                "runs": len(both),
                "of": len(chosen),
                **percent(seconds / runs.measured.seconds[both] - 1),
                "ms_each": 1e3 * float(np.median(took)) if took else None,
            }
        )
    ours = scored.error[np.isin(scored.which, both)]
    told.append({"beside": "wattmesh, by group", "runs": len(both), **percent(ours)})
    return told
