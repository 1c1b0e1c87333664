"""The torchtitan script of docs/trainers.md as a job: without us, or with its diff and ordered."""

import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from tests.docs.blocks import block, patched
from tests.torchtitan.tiny import (
    Sentences,
    Trainer,
    configuration,
    distributed_utils,
    trainer_module,
)
from wattmesh.integrations import torchtitan as titan
from wattmesh.integrations.pytorch.averages import begin_average, move_average
from wattmesh.integrations.torchtitan import on_cpu
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.layout import Layout

PAGE, HEADING = "docs/trainers.md", "torchtitan"
KILLED_AT = 3


class Noted(Trainer):  # type: ignore[misc]
    """A Trainer class of the user's own: keeps an average, and notes what it trained."""

    def __init__(self, config: Any) -> None:
        """Build, and begin the average."""
        super().__init__(config)
        self.averages = {"ema": begin_average(self.model_parts)}
        self._heard: list[float] = []
        self._trained = 0
        log = self.metrics_processor.log

        def hear(step: int, loss: float, *args: Any, **named: Any) -> None:
            self._heard.append(loss)
            log(step, loss, *args, **named)

        self.metrics_processor.log = hear

    def train_step(self, data_iterator: Any) -> None:
        """Do one of torchtitan's own, and lose this rank once if that is wanted."""
        super().train_step(data_iterator)
        self._trained += 1
        move_average(self.model_parts, self.averages["ema"], 0.9)
        out = Path(os.environ["OUT"])
        if not self.parallel_dims.pp_enabled or self.pp_has_last_stage:
            layout = str(titan.layout_of(self.config.parallelism, dist.get_world_size()))
            line = {"step": self.step, "loss": self._heard[-1], "layout": layout}
            assert self._trained == self.step, "what the class keeps was lost"
            with (out / f"steps-{os.environ['RANK']}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        if self.step == self.config.training.steps:
            (out / f"ema-{os.environ['RANK']}").write_text(repr(_sum(self.averages["ema"])))
        mark = out / "killed"
        mine = os.environ.get("KILL") == os.environ["RANK"]
        if mine and self.step == KILLED_AT and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def state_dict(self) -> dict[str, Any]:
        """Keep a count of its own with torchtitan's."""
        return {**super().state_dict(), "trained": self._trained}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        super().load_state_dict(state_dict)
        self._trained = state_dict["trained"]

    def should_continue_training(self) -> bool:
        """Stop before the last step if that is wanted."""
        wanted = int(os.environ.get("STOPS", self.config.training.steps))
        return bool(super().should_continue_training() and self.step < wanted)


def _sum(average: dict[str, torch.Tensor]) -> float:
    whole = [
        each.full_tensor() if hasattr(each, "full_tensor") else each for each in average.values()
    ]
    return sum(float(each.double().square().sum()) for each in whole)


def _run(text: str, names: dict[str, Any]) -> int:
    """Run the page's script, with its configuration in place of the user's."""
    torch.set_num_threads(1)
    trainer_module.Trainer = Noted
    mine = ModuleType("my_configuration")
    steps = int(os.environ.get("STEPS", "4"))
    vars(mine)["config"] = configuration(os.environ["OUT"], steps)
    if os.environ.get("SPOIL"):
        Sentences.load_state_dict = lambda self, state_dict: None  # type: ignore[method-assign]
    if "ENDS" in os.environ:
        Sentences.ends = int(os.environ["ENDS"])
    sys.modules["my_configuration"] = mine
    exec(compile(text, PAGE, "exec"), {"__name__": "__main__", **names})
    return 0


def plain() -> int:
    """One process of the script as it is without us."""
    # torchtitan 0.3 calls torch.distributed.set_timeout here, which torch 2.13 does not have.
    distributed_utils.set_pg_timeouts = lambda **named: None
    on_cpu.use_cpu()
    return _run(block(PAGE, HEADING), {})


def moved() -> int:
    """One rank of the script with the lines of its diff, ordered through TURNS."""
    turns = [
        Turn(step=step, layout=Layout.from_text(to)) for step, to in json.loads(os.environ["TURNS"])
    ]
    script = Script(turns)
    text = patched(block(PAGE, HEADING), block(PAGE, HEADING, 2))
    where = 'checkpoint_dir="/shared/llama-8b"'
    assert where in text
    given: dict[str, Any] = {"checkpoint_dir": os.environ["FOLDER"]}
    given["layout"] = Layout.from_text(os.environ["LAYOUT"])
    given["reporter"] = script if os.environ["RANK"] == "0" else None
    status = _run(text.replace(where, "**given"), {"given": given})
    if os.environ["RANK"] == "0":
        ends = [[each[0], str(each[1]), each[2]] for each in script.ends()]
        (Path(os.environ["OUT"]) / "switches.json").write_text(json.dumps(ends))
    return status
