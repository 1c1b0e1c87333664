"""The Accelerate script of docs/trainers.md as a job: without us, or with its diff and ordered."""

import importlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch

from tests.accelerate.sharding_on_cpu import take_plugin_on_cpu
from tests.docs.blocks import block, patched
from wattmesh.integrations.pytorch import accelerate
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.layout import Layout

# What the page's script imports late, imported here once for all ranks.
importlib.import_module("transformers.models.auto.modeling_auto")
importlib.import_module("transformers.models.llama.modeling_llama")

PAGE, HEADING = "docs/trainers.md", "Accelerate"
KILLED_AT = 3


def script() -> str:
    """The page's script with its diff."""
    return patched(block(PAGE, HEADING), block(PAGE, HEADING, 2))


def _run(text: str, **names: Any) -> int:
    torch.set_num_threads(1)
    exec(compile(text, PAGE, "exec"), {"__name__": "__main__", **names})
    return 0


def plain() -> int:
    """One process of the script as it is without us; its losses are those of microbatches."""
    return _run(block(PAGE, HEADING).replace("\n        fsdp_plugin=", "\n        # "))


def _forget_the_place_from_step_2() -> None:
    rest = accelerate._Order.batches

    def batches(self: Any, position: Any) -> Any:
        return rest(self, position) if position.step < 2 else self._loader

    accelerate._Order.batches = batches  # type: ignore[method-assign]


def moved() -> int:
    """One rank of the script with the lines of its diff, ordered through TURNS."""
    take_plugin_on_cpu()
    if os.environ.get("SPOIL"):
        _forget_the_place_from_step_2()
    rank, out = int(os.environ["RANK"]), Path(os.environ["OUT"])
    turns = [(step, Layout.from_text(to)) for step, to in json.loads(os.environ["TURNS"])]
    orders = Script(Turn(step=step, layout=to) for step, to in turns)
    given: dict[str, Any] = {"checkpoint_dir": os.environ["FOLDER"], "ema_decay": 0.9}
    given["layout"] = Layout.from_text(os.environ["LAYOUT"])
    given["reporter"] = orders if rank == 0 else None
    where = 'checkpoint_dir="/shared/llama",'
    text = script()
    assert where in text

    def note(session: Any, loss: float) -> None:
        step, layout = session.position.step, str(session.generation.layout)
        line: dict[str, Any] = {
            "step": step,
            "loss": loss,
            "layout": layout,
            "samples": session.position.samples,
        }
        if step == 4:
            ema = session.state.averages["ema"].values()
            line["ema"] = sum(float(each.full_tensor().double().square().sum()) for each in ema)
        with (out / f"steps-{rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        mark = out / "killed"
        if os.environ.get("KILL") == str(rank) and step == KILLED_AT and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    text = text.replace("(64, (20, LENGTH)", f"(64, ({os.environ.get('SAMPLES', '20')}, LENGTH)")
    text = text.replace("steps=STEPS", f"steps={os.environ.get('STEPS', 'STEPS')}")
    if os.environ.get("MIXED"):
        text = text.replace("Accelerator(\n", 'Accelerator(\n        mixed_precision="bf16",\n')
    text = text.replace(where, "**given,").replace('print("loss", loss)', "note(session, loss)")
    status = _run(text, given=given, note=note)
    if rank == 0:
        ends = [[each[0], str(each[1]), each[2]] for each in orders.ends()]
        (out / "switches.json").write_text(json.dumps(ends))
    return status
