"""The Trainer script of docs/trainers.md as a job: without us, or with its diff and ordered."""

import importlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from tests.accelerate.sharding_on_cpu import take_plugin_on_cpu
from tests.docs.blocks import block, patched
from wattmesh.integrations.pytorch.huggingface import trainer_session
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.layout import Layout

# What the page's script imports late, imported here once for all ranks.
importlib.import_module("transformers.models.llama.modeling_llama")

PAGE, HEADING = "docs/trainers.md", "Hugging Face Trainer"
KILLED_AT = 3


def script() -> str:
    """The page's script with its diff."""
    return patched(block(PAGE, HEADING), block(PAGE, HEADING, 2))


def _run(text: str, names: dict[str, Any]) -> int:
    """Run it as a script, with a Trainer class that notes what Trainer logs."""
    torch.set_num_threads(1)
    out, rank = Path(os.environ["OUT"]), os.environ.get("RANK", "0")

    class Noted(Trainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            super().log(logs, start_time)
            session = names.get("session")
            line = {
                **logs,
                "step": self.state.global_step,
                "layout": str(session.generation.layout) if session else "alone",
            }
            kind = "steps" if "loss" in logs else "other"
            with (out / f"{kind}-{rank}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            mark = out / "killed"
            killed = os.environ.get("KILL") == rank and line["step"] == KILLED_AT
            if killed and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    names |= {"__name__": "__main__", "Noted": Noted}
    text = text.replace("/shared/llama/out", str(out / "trainer"))
    text = text.replace("return Trainer(", "return Noted(")
    exec(compile(text, PAGE, "exec"), names)
    return 0


def plain() -> int:
    """One process of the script as it is without us, its batch that of all ranks."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    text = block(PAGE, HEADING).replace("\n        fsdp=True,", "")
    text = text.replace("train_batch_size=2", "train_batch_size=4")
    return _run(text, {})


def _forget_the_place_from_step_2() -> None:
    go_on = trainer_session.UnderSession.go_on_training

    def gone_on(self: Any, session: Any) -> Any:
        self.args.ignore_data_skip = session.position.step >= 2
        return go_on(self, session)

    trainer_session.UnderSession.go_on_training = gone_on  # type: ignore[method-assign]


def moved() -> int:
    """One rank of the script with the lines of its diff, ordered through TURNS."""
    take_plugin_on_cpu()
    if os.environ.get("SPOIL"):
        _forget_the_place_from_step_2()
    rank, out = int(os.environ["RANK"]), Path(os.environ["OUT"])
    turns = [(step, Layout.from_text(to)) for step, to in json.loads(os.environ["TURNS"])]
    orders = Script(Turn(step=step, layout=to) for step, to in turns)
    given: dict[str, Any] = {"checkpoint_dir": os.environ["FOLDER"]}
    given["layout"] = Layout.from_text(os.environ["LAYOUT"])
    given["reporter"] = orders if rank == 0 else None
    where = 'checkpoint_dir="/shared/llama",'
    text = script()
    assert where in text
    text = text.replace(where, "**given,")
    status = _run(text, {"given": given})
    if rank == 0:
        ends = [[each[0], str(each[1]), each[2]] for each in orders.ends()]
        (out / "switches.json").write_text(json.dumps(ends))
    return status
