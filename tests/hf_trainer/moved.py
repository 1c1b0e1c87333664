"""The Trainer script of docs/trainers.md as a job: without us, or with its diff and ordered."""

import importlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from tests.accelerate.sharding_on_cpu import take_plugin_on_cpu
from tests.docs.blocks import block
from tests.hf_trainer.page import HEADING, PAGE, script
from wattmesh.integrations.pytorch.averages import begin_average, move_average
from wattmesh.integrations.pytorch.huggingface import trainer_session
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.layout import Layout

# What the page's script imports late, imported here once for all ranks.
importlib.import_module("transformers.models.llama.modeling_llama")

DECAY = 0.9
OF_ONE_RANK = "per_device_train_batch_size=2,"


class Counter(TrainerCallback, ExportableState):
    """A callback that holds something, and has it carried as Trainer's callbacks do."""

    def __init__(self, steps: int = 0) -> None:
        """Begin at `steps`."""
        self.steps = steps

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Count."""
        self.steps += 1

    def state(self) -> dict[str, Any]:
        """What Trainer keeps of it."""
        return {"args": {"steps": self.steps}, "attributes": {}}


class Averaged(TrainerCallback):
    """Keeps an average of the parameters of a script without us."""

    def on_train_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
        """Begin it."""
        self.modules, self.ema = [model], begin_average([model])

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Move it."""
        move_average(self.modules, self.ema, DECAY)


class Annealed(Trainer):
    """A class whose loss depends on how far it has trained."""

    def compute_loss(self, *args: Any, **named: Any) -> Any:
        """Weigh it by the step and the epoch."""
        weight = 1 + 0.1 * self.state.global_step + 0.1 * self.state.epoch
        found = super().compute_loss(*args, **named)
        return (found[0] * weight, *found[1:]) if isinstance(found, tuple) else found * weight


def _squares(average: dict[str, Any]) -> float:
    whole = (
        each.full_tensor() if hasattr(each, "full_tensor") else each for each in average.values()
    )
    return sum(float(each.double().square().sum()) for each in whole)


def _run(text: str, names: dict[str, Any]) -> int:
    """Run it as a script, with a Trainer class that notes what Trainer logs."""
    torch.set_num_threads(1)
    out, rank = Path(os.environ["OUT"]), os.environ.get("RANK", "0")

    class Noted(Trainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            super().log(logs, start_time)
            session = names.get("session")
            counted = [each.steps for each in self.callback_handler.callbacks if _counts(each)]
            line = {
                **logs,
                "step": self.state.global_step,
                "layout": str(session.generation.layout) if session else "alone",
                "counted": counted[0],
                "logged": [each["loss"] for each in self.state.log_history if "loss" in each],
            }
            kind = "steps" if "loss" in logs else "other"
            averaged = [each for each in self.callback_handler.callbacks if _averages(each)]
            if session and kind == "steps" and "ema" in session.state.averages:
                line["ema"] = _squares(session.state.averages["ema"])
            elif averaged and kind == "steps":
                line["ema"] = _squares(averaged[0].ema)
            with (out / f"{kind}-{rank}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            mark = out / "killed"
            ends_here = os.environ.get("KILL") == f"{rank} at {line['step']}"
            if ends_here and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    made = {"Noted": Noted, "Counter": Counter, "Annealed": Annealed}
    names |= {"__name__": "__main__", **made, "others": names.get("others", [])}
    text = text.replace("/shared/llama/out", str(out / "trainer"))
    text = text.replace("return Trainer(", "return Noted(callbacks=[Counter(), *others],")
    for old, new in json.loads(os.environ.get("REPLACED", "[]")):
        assert old in text, old
        text = text.replace(old, new)
    exec(compile(text, PAGE, "exec"), names)
    return 0


def _counts(callback: Any) -> bool:
    return isinstance(callback, Counter)


def _averages(callback: Any) -> bool:
    return isinstance(callback, Averaged)


def plain() -> int:
    """The script as it is without us, in one process: its batch is that of all ranks."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    text = block(PAGE, HEADING).replace("\n        fsdp=True,", "")
    assert OF_ONE_RANK in text
    text = text.replace(OF_ONE_RANK, "per_device_train_batch_size=4,")
    return _run(text, {"others": [Averaged()]})


def plain_ranks() -> int:
    """One of several ranks of the script as it is without us."""
    take_plugin_on_cpu()
    return _run(block(PAGE, HEADING), {})


def _forget_the_place_from_step_2() -> None:
    go_on = trainer_session.TrainerUnderSession.go_on_training

    def gone_on(self: Any, session: Any) -> Any:
        self.args.ignore_data_skip = session.position.step >= 2
        return go_on(self, session)

    trainer_session.TrainerUnderSession.go_on_training = gone_on  # type: ignore[method-assign]


def moved() -> int:
    """One rank of the script with the lines of its diff, ordered through TURNS."""
    take_plugin_on_cpu()
    if os.environ.get("SPOIL"):
        _forget_the_place_from_step_2()
    rank, out = int(os.environ["RANK"]), Path(os.environ["OUT"])
    turns = [(step, Layout.from_text(to)) for step, to in json.loads(os.environ["TURNS"])]
    orders = Script(Turn(step=step, layout=to) for step, to in turns)
    given: dict[str, Any] = {"checkpoint_dir": os.environ["FOLDER"], "ema_decay": DECAY}
    given["layout"] = Layout.from_text(os.environ["LAYOUT"])
    given["reporter"] = orders if rank == 0 else None
    where, last = 'checkpoint_dir="/shared/llama",', "trainer.train(session)"
    text = script()
    assert where in text
    assert last in text

    def then(trained: Any) -> None:
        """After training, while the ranks are still there."""
        found = trained.evaluate()
        (out / f"then-{rank}.json").write_text(json.dumps(found))

    text = text.replace(where, "**given,").replace(last, "trainer.train(session, then)")
    status = _run(text, {"given": given, "then": then})
    if rank == 0:
        ends = [[each[0], str(each[1]), each[2]] for each in orders.ends()]
        (out / "switches.json").write_text(json.dumps(ends))
    return status
