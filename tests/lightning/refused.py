"""Makes trainings that are not moved, each by one change, and writes what is said of each."""

import inspect
import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, WeightAveraging
from lightning.pytorch.strategies import (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
)
from torch._C._distributed_c10d import HashStore
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from wattmesh.errors import InputInvalid
from wattmesh.integrations.lightning import training
from wattmesh.integrations.lightning.refusals import check_layout
from wattmesh.reconfig.layout import Layout

ROWS = torch.zeros(16, 4)
REQUEUED = os.path.join(os.environ.get("OUT", ""), "requeued")
SLURM = ("JOB_ID", "JOB_NAME", "LOCALID", "NODEID", "NTASKS", "PROCID")


class Plain(LightningModule):
    """A module that is moved."""

    def __init__(self) -> None:
        """Make one layer."""
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def configure_model(self) -> None:
        """Shard it."""
        mesh: Any = self.device_mesh
        fully_shard(self.layer, mesh=mesh["data_parallel"])

    def configure_optimizers(self) -> Any:
        """Make a plain one."""
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any) -> Any:
        """Return a loss."""
        return self.layer(batch).square().mean()


class Manual(Plain):
    """A module that steps by itself."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__()
        self.automatic_optimization = False


class Reading(Plain):
    """A module that reads by itself."""

    def training_step(self, dataloader_iter: Any) -> Any:
        """Read a batch."""
        return super().training_step(next(dataloader_iter)[0])


class Normed(Plain):
    """A module that norms over a batch."""

    def __init__(self) -> None:
        """Add the norm."""
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)


class Bringing(Plain):
    """A module that brings a callback."""

    def configure_callbacks(self) -> Any:
        """Bring one that is not moved."""
        return [GradientAccumulationScheduler({1: 4})]


class Stream(IterableDataset[Any]):
    """Data that come one after the other."""

    def __iter__(self) -> Iterator[Any]:
        """Give some."""
        yield from ROWS


def _loader(data: Any = ROWS, **given: Any) -> Any:
    return DataLoader(data, batch_size=2, **given)


def _made(
    module: Any = Plain, loader: Any = None, more: Any = (), kind: Any = None, **given: Any
) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    chosen = {"strategy": ModelParallelStrategy(), **quiet, **given}
    trainer = Trainer(accelerator="cpu", accumulate_grad_batches=2, max_epochs=1, **chosen)
    if kind is not None:
        # Lightning itself takes it on GPUs only.
        trainer._accelerator_connector.strategy = object.__new__(kind)
    return trainer, module(), _loader() if loader is None else loader, *more


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropping": {"loader": _loader(ROWS[:15], drop_last=True)},
    "two ranks": {"layout": Layout(dp_shard=2)},
    "batch": {"global_batch_size": 5},
    "replicas": {"layout": Layout(dp_replicate=2)},
    "recompute": {"layout": Layout(micro_batch=1)},
    "ddp": {"strategy": "ddp"},
    "fsdp1": {"kind": FSDPStrategy},
    "deepspeed": {"kind": DeepSpeedStrategy},
    "one device": {"strategy": "auto"},
    "device": {"device": "cuda"},
    "manual": {"module": Manual},
    "reading": {"module": Reading},
    "norm": {"module": Normed},
    "no module": {"module": dict},
    "resume": {"more": (None, None, "last.ckpt")},
    "requeued": {"default_root_dir": REQUEUED, "slurm": True},
    "max_time": {"max_time": timedelta(hours=1)},
    "by the clock": {"val_check_interval": timedelta(hours=1)},
    "overfit": {"overfit_batches": 2},
    "reload": {"reload_dataloaders_every_n_epochs": 1},
    "dev run": {"fast_dev_run": True},
    "precision": {"precision": "16-true"},
    "averaging": {"callbacks": [WeightAveraging()]},
    "scheduler": {"callbacks": [GradientAccumulationScheduler({1: 4})]},
    "brought": {"module": Bringing},
    "stream": {"loader": _loader(Stream())},
    "two loaders": {"loader": [_loader(), _loader()]},
    "weighted": {
        "loader": _loader(sampler=WeightedRandomSampler([1.0] * 16, 16)),
        "use_distributed_sampler": False,
    },
    "short": {"loader": _loader(ROWS[:15])},
}


def _said(given: dict[str, Any]) -> str:
    chosen = dict(given)
    layout = chosen.pop("layout", Layout())
    if chosen.pop("slurm", False):
        os.environ.update({f"SLURM_{name}": "1" if name == "NTASKS" else "0" for name in SLURM})
    told = SimpleNamespace(
        global_batch_size=chosen.pop("global_batch_size", 4),
        sample_tokens=1,
        boundary_every=1,
        device=chosen.pop("device", "cpu"),
        loggers=None,
    )
    try:
        check_layout(layout)
        training.prepared(lambda: _made(**chosen), told, layout)
    except InputInvalid as error:
        return str(error)
    finally:
        for name in SLURM:
            os.environ.pop(f"SLURM_{name}", None)
    return ""


def _leave_a_file_of_slurm() -> None:
    """Train, and save what Lightning resumes from by itself in a job that Slurm has requeued."""
    trainer, *fitted = _made()
    trainer.fit(*fitted)
    trainer.save_checkpoint(os.path.join(REQUEUED, "hpc_ckpt_1.ckpt"))


def main() -> int:
    """Write by case what is said; "" of one that is taken."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    _leave_a_file_of_slurm()
    said = {case: _said(given) for case, given in CASES.items()}
    own_kind = SimpleNamespace(global_batch_size=4, device="cpu")
    for case, made in (("no trainer", (object(), None)), ("no tuple", None)):
        try:
            training.prepared(lambda made=made: made, own_kind, Layout())  # type: ignore[misc]
        except InputInvalid as error:
            said[case] = str(error)
    _, _, tail = inspect.getsource(Trainer._run).partition("results = self._run_stage()")
    lines = [line.strip() for line in tail.splitlines()]
    done = [line for line in lines if line and not line.startswith(("#", "log.debug"))]
    Path(os.environ["OUT"], "after_stage.json").write_text(json.dumps(done))
    Path(os.environ["OUT"], "said.json").write_text(json.dumps(said))
    return 0
