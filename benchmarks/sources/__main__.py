"""Which checkpoints of others are read bit for bit: producer x layout x dtype x optimizer x form.

    python -m benchmarks.sources [--json]

Four gloo ranks train a small model and save it with the real writers; every tensor is compared
with what the ranks held in memory, converted, and loaded in two layouts that it was not saved in.
Every case that is read has five spoilt twins. Nothing here is timed.
"""

import argparse
import gc
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Goal, Report, run
from benchmarks.sources import ranks
from benchmarks.sources.cases import DTYPES, OPTIMIZERS, Case, Net, Trained, cases, step
from benchmarks.sources.compare import Outcome, outcome


def transformers_cases(folder: Path) -> None:
    """Save with transformers, in one process, and with the files of its trainer."""
    # Only here: a second of imports that the ranks need not have.
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415

    for case in cases():
        if case.producer != "transformers":
            continue
        torch.manual_seed(0)
        config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=20, n_positions=8,
                            tie_word_embeddings=False)  # fmt: skip
        model: Any = GPT2LMHeadModel(config)
        model.to(DTYPES[case.dtype])
        params = model.named_parameters() if "named" in case.form else model.parameters()
        trained = Trained(model, [OPTIMIZERS["adamw"](params)])
        shard = "2KB" if case.form == "sharded index" else "1GB"
        held = {f"{name}|param": each.detach().clone() for name, each in model.named_parameters()}
        path = folder / case.folder
        if case.optimizer != "none":
            held = ranks.held(step(trained))
            path.mkdir()
            torch.save(trained.optimizers[0].state_dict(), path / "optimizer.pt")
        model.save_pretrained(path, max_shard_size=shard)
        torch.save(held, folder / f"{case.folder}.pt")


def order_of(case: Case) -> list[str]:
    """Names of a case's parameters, by number."""
    if case.producer == "transformers":
        from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415

        config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=20, n_positions=8,
                            tie_word_embeddings=False)  # fmt: skip
        return [name for name, _ in GPT2LMHeadModel(config).named_parameters()]
    return [name for name, _ in Net(torch.float32).named_parameters()]


def measure(chosen: argparse.Namespace) -> Report:
    """Which checkpoints of others are read bit for bit, which are refused, which are wrong."""
    del chosen
    torch.set_num_threads(1)
    # transformers imports DeepSpeed where it is installed, which otherwise prints what it chose.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Before ranks are forked, which need it too.
    import transformers.optimization  # noqa: F401, PLC0415

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    gc.freeze()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if failed := ranks.launch(ranks.save_all, folder):
            raise RuntimeError(f"{failed} ranks failed while saving")
        transformers_cases(folder)
        found = {case: outcome(case, folder, order_of(case)) for case in cases()}
        if failed := ranks.launch(ranks.load_all, folder):
            raise RuntimeError(f"{failed} ranks failed while loading")
        loaded = {case: _loaded(folder / f"{case.folder}.loaded") for case in found}
    rows = tuple(_row(case, each, loaded[case]) for case, each in found.items())
    counts = Counter(each.result for each in found.values())
    summary = {"case": "all", "cases": len(found), **dict(counts)}
    missed = sum(each.twins - each.caught for each in found.values())
    return Report(
        benchmark="sources",
        rows=(*rows, summary),
        goals=(
            Goal(name="wrong", value=counts["wrong"], goal=0, op="=="),
            Goal(name="sabotage_missed", value=missed, goal=0, op="=="),
            Goal(name="unasked", value=sum(not each.asked for each in found.values()), goal=0,
                 op="=="),
            Goal(name="loads_wrong", value=sum(bool(each) for each in loaded.values()), goal=0,
                 op="=="),
            Goal(name="bitwise", value=counts["bitwise"], goal=90, op=">="),
        ),
    )  # fmt: skip


def _loaded(path: Path) -> str:
    return path.read_text().splitlines()[0] if path.is_file() and path.stat().st_size else ""


def _row(case: Case, told: Outcome, loaded: str) -> dict[str, object]:
    return {
        "case": case.producer, "layout": case.layout, "dtype": case.dtype,
        "optimizer": case.optimizer, "form": case.form, "asked": case.ask or "nothing",
        "result": told.result, "twins_caught": f"{told.caught}/{told.twins}",
        "loaded_in_two_layouts": loaded or ("yes" if told.result == "bitwise" else "no"),
        "why": told.why,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(measure))
