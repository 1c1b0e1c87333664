"""The Lightning script of docs/trainers.md as a job: without us, or with its diff and ordered."""

import importlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from tests.docs.blocks import block
from tests.lightning.page import HEADING, PAGE, script
from wattmesh.integrations.lightning import data
from wattmesh.integrations.pytorch.averages import begin_average, move_average
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.layout import Layout

# Lightning's other name, and what its loggers import late, imported here once for all ranks.
importlib.import_module("pytorch_lightning")
importlib.import_module("torch.utils.tensorboard")


class Noted(Callback):
    """Notes each step, counts batches, and keeps an average of the parameters."""

    def __init__(self, names: dict[str, Any]) -> None:
        """Read the session, once there is one, from the script's names."""
        self.names, self.batches, self.step = names, 0, -1
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        """What Lightning keeps of it."""
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        self.batches = state_dict["batches"]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the average."""
        del trainer
        pl_module.averages = {"ema": begin_average([pl_module])}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin where the run stands."""
        del pl_module
        self.step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """Note the step that ended, if one has."""
        self.batches += 1
        self.losses.append(float(outputs["loss"]) * trainer.accumulate_grad_batches)
        if trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        move_average([pl_module], pl_module.averages["ema"], 0.9)
        loss = torch.tensor(sum(self.losses) / len(self.losses), dtype=torch.float64)
        self.losses.clear()
        torch.distributed.all_reduce(loss)
        session = self.names.get("session")
        _note(
            "steps",
            {
                "step": self.step,
                "loss": float(loss) / trainer.world_size,
                "layout": str(session.generation.layout) if session else "alone",
                "batches": self.batches,
                "rate": trainer.optimizers[0].param_groups[0]["lr"],
            },
        )
        mark = Path(os.environ["OUT"], "killed")
        ends_here = os.environ.get("KILL") == f"{os.environ.get('RANK')} at {self.step}"
        if ends_here and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Note what was logged of an epoch."""
        ema = pl_module.averages["ema"].values()
        logged = trainer.callback_metrics
        whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in ema]
        _note(
            "epochs",
            {
                "epoch": trainer.current_epoch,
                "train_loss": float(logged["train_loss_epoch"]),
                "val_loss": float(logged["val_loss"]),
                "seen": float(logged.get("seen", 0.0)),
                "ema": sum(float(each.double().square().sum()) for each in whole),
            },
        )


def _note(kind: str, line: dict[str, Any]) -> None:
    rank = os.environ.get("RANK", "0")
    with Path(os.environ["OUT"], f"{kind}-{rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _run(text: str, names: dict[str, Any]) -> int:
    """Run it as a script, with a callback that notes what it trains."""
    torch.set_num_threads(1)
    text = text.replace("/shared/net/out", str(Path(os.environ["OUT"], "lightning")))
    quiet = "enable_progress_bar=False, enable_model_summary=False, callbacks=[Noted(globals())],"
    text = text.replace("        devices=", f"        {quiet}\n        devices=")
    for old, new in json.loads(os.environ.get("REPLACED", "[]")):
        assert old in text, old
        text = text.replace(old, new)
    names |= {"__name__": "__main__", "Noted": Noted}
    exec(compile(text, PAGE, "exec"), names)
    return 0


def plain() -> int:
    """One of the ranks of the script as it is without us."""
    ranks = int(os.environ["WORLD_SIZE"])
    text = block(PAGE, HEADING)
    for old, new in ("_size=4", "_size={}"), ("devices=4", "devices={}"):
        assert old in text
        text = text.replace(old, new.format(ranks))
    return _run(text.replace("[:20], batch_size=1", f"[:20], batch_size={4 // ranks}"), {})


def _forget_the_place_from_step_2() -> None:
    begin = data.LoaderOrder.begin

    def begun(self: data.LoaderOrder, epoch: int, batch: int) -> None:
        del batch
        begin(self, epoch, 0)

    data.LoaderOrder.begin = begun  # type: ignore[method-assign]


def moved() -> int:
    """One rank of the script with the lines of its diff, ordered through TURNS."""
    if os.environ.get("SPOIL"):
        _forget_the_place_from_step_2()
    rank, out = int(os.environ["RANK"]), Path(os.environ["OUT"])
    turns = [(step, Layout.from_text(to)) for step, to in json.loads(os.environ["TURNS"])]
    orders = Script(Turn(step=step, layout=to) for step, to in turns)
    given: dict[str, Any] = {"checkpoint_dir": os.environ["FOLDER"]}
    given["layout"] = Layout.from_text(os.environ["LAYOUT"])
    given["reporter"] = orders if rank == 0 else None
    where, last = 'checkpoint_dir="/shared/net",', "lightning.train(session)"
    text = script()
    assert where in text
    assert last in text

    def then(trainer: Any) -> None:
        """After training, while the ranks are still there."""
        (out / f"then-{rank}").write_text(str(trainer.global_step))

    text = text.replace(where, "**given,").replace(last, "lightning.train(session, then)")
    status = _run(text, {"given": given, "then": then})
    if rank == 0:
        ends = [[each[0], str(each[1]), each[2]] for each in orders.ends()]
        (out / "switches.json").write_text(json.dumps(ends))
    return status
