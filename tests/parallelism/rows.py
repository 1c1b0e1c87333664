"""Rows as a table of configurations has them: one that is right, and any legal one."""

import math
from collections import Counter
from typing import Any, TypeAlias

from hypothesis import strategies as st

from wattmesh.policies.parallelism.hardware import CLASSES
from wattmesh.policies.parallelism.setups import Setups
from wattmesh.policies.parallelism.training_rows import TrainingRows, read_rows

Row: TypeAlias = dict[str, str]

RIGHT: Row = {
    "row_id": "R1",
    "model": "llama3-8b",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn": "14336",
    "gated_mlp": "1",
    "vocab": "128256",
    "experts": "",
    "topk": "",
    "moe_ffn": "",
    "seq_len": "8192",
    "gpu": "H100-80GB-SXM",
    "num_gpus": "64",
    "tp": "2",
    "pp": "2",
    "vpp": "1",
    "cp": "1",
    "ep": "1",
    "zero": "1",
    "micro_batch": "1",
    "global_batch": "128",
    "recompute": "none",
    "precision": "bf16",
    "framework": "Megatron-Bridge / NeMo 26.02",
    "notes": "",
}


def row(**changes: object) -> Row:
    """Give the right row, changed."""
    return RIGHT | {name: str(value) for name, value in changes.items()}


def read(*rows: Row) -> TrainingRows:
    """Read rows that are all right."""
    found = read_rows(rows)
    assert found.excluded == {}
    return found


def setups(*rows: Row) -> Setups:
    """Read rows that are all right, without their tags."""
    return read(*rows).setups


DEGREES = st.sampled_from((1, 2, 4, 8))


@st.composite
def legal(draw: st.DrawFn, /, **fixed: Any) -> Row:
    """Draw any legal configuration; `fixed`: columns that are not drawn."""
    tp, pp = fixed.get("tp") or draw(DEGREES), fixed.get("pp") or draw(DEGREES)
    cp, dp = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2, 3, 8, 64)))
    chunks = draw(st.sampled_from((1, 2, 3))) if pp > 1 else 1
    kv_heads = draw(st.sampled_from((8, 16)))
    heads = kv_heads * draw(st.sampled_from((1, 2, 8)))
    experts = draw(st.sampled_from((0, 0, 8, 96)))
    shared = math.gcd(experts, tp * cp * dp) if experts else 1
    batches = draw(st.integers(1, 40)) * (pp if chunks > 1 else 1)
    micro_batch = draw(st.sampled_from((1, 2, 5)))
    return row(
        **{
            "model": draw(st.sampled_from(("", "gpt3-175b", "deepseek-v3", "gpt-oss-120b"))),
            "layers": pp * chunks * draw(st.integers(1, 12)),
            "heads": heads,
            "kv_heads": kv_heads,
            "hidden": heads * draw(st.sampled_from((32, 64, 128))),
            "ffn": draw(st.sampled_from((1024, 11008, 53248))),
            "gated_mlp": draw(st.sampled_from((0, 1))),
            "vocab": draw(st.sampled_from((8192, 50257, 201088))),
            "experts": experts or "",
            "topk": draw(st.sampled_from((1, 8))) if experts else "",
            "moe_ffn": draw(st.sampled_from((768, 8192))) if experts else "",
            "seq_len": cp * draw(st.sampled_from((128, 2048, 65536))),
            "gpu": draw(st.sampled_from(sorted(CLASSES))),
            "num_gpus": tp * pp * cp * dp,
            "tp": tp,
            "pp": pp,
            "vpp": chunks,
            "cp": cp,
            "ep": draw(st.sampled_from([each for each in range(1, 97) if shared % each == 0])),
            "zero": draw(st.sampled_from((0, 1, 2, 3))),
            "micro_batch": micro_batch,
            "global_batch": dp * micro_batch * batches,
            "recompute": draw(st.sampled_from(("none", "selective", "full"))),
            "precision": draw(st.sampled_from(("bf16", "fp16", "fp8-mx", "nvfp4"))),
            "framework": draw(st.sampled_from(("Megatron-LM 2021", "torchtitan", "x 26.04.01"))),
            "notes": draw(st.sampled_from(("", "LoRA r=16"))),
            **fixed,
        }
    )


WATCHED = ("zero", "recompute", "precision", "framework", "notes", "gpu", "tp", "pp", "cp")
"""Columns of few values, all of which a property test must have drawn."""


GPUS = 6
"""Kinds of GPUs, of eleven, that a property test must have drawn."""


class Drawn:
    """What a property test was given: it must have been what the test claims to cover."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.seen: Counter[tuple[str, str]] = Counter()

    def add(self, *rows: Row) -> None:
        """Count what rows are."""
        for each in rows:
            self.seen.update((name, each[name]) for name in WATCHED)
            self.seen["experts", str(bool(each["experts"]))] += 1
            self.seen["ep > 1", str(int(each["ep"]) > 1)] += 1
            self.seen["vpp > 1", str(int(each["vpp"]) > 1)] += 1
            self.seen["gated", each["gated_mlp"]] += 1
            self.seen["model", each["model"]] += 1

    def missing(self) -> list[tuple[str, str]]:
        """List what was never drawn."""
        wanted = [("zero", str(each)) for each in range(4)]
        wanted += [("recompute", each) for each in ("none", "selective", "full")]
        wanted += [("precision", each) for each in ("bf16", "fp16", "fp8-mx", "nvfp4")]
        wanted += [("framework", each) for each in ("Megatron-LM 2021", "torchtitan")]
        wanted += [("notes", each) for each in ("", "LoRA r=16")]
        wanted += [(name, str(each)) for name in ("tp", "pp") for each in (1, 2, 4, 8)]
        wanted += [("cp", str(each)) for each in (1, 2, 4)]
        wanted += [(name, each) for name in ("experts", "ep > 1", "vpp > 1") for each in TRUTHS]
        wanted += [("gated", "0"), ("gated", "1"), ("model", "deepseek-v3"), ("model", "")]
        gpus = sum(1 for name, _ in self.seen if name == "gpu")
        few = [] if gpus >= GPUS else [("gpu", f"only {gpus} kinds")]
        return few + [each for each in wanted if not self.seen[each]]


TRUTHS = ("True", "False")
