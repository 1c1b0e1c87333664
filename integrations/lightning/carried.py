"""What goes with a run beside model and optimizer: what Lightning puts into its own checkpoints.

    checkpoint   loops, callbacks, schedules, precision plugin, data module, and what the module's
                 `on_save_checkpoint` adds; Lightning's own code writes and reads it
    metrics      what callbacks may read of what was logged before
    sums         of what is logged by epoch; see results.py
    seen         by the module's metrics; see metrics.py

Invariant: it is the same on all ranks: sums over ranks, and else what the first rank has.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist

from wattmesh.integrations.lightning import metrics, results
from wattmesh.integrations.lightning.processes import part
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.state import plain

OF_MODEL = ("state_dict", "optimizer_states")
"""Parts of Lightning's checkpoints that the session writes and loads itself."""

LOGGED = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
"""What Lightning's logger connector keeps of what was logged last, by name."""


def gathered(trainer: Any) -> dict[str, Any]:
    """Give what all ranks save of a trainer at a save step. Collective."""
    module = trainer.lightning_module
    sums = results.sums_of(trainer.fit_loop.epoch_loop._results)
    # Tensor parallel ranks have seen the same samples.
    first = _place(trainer, "tensor_parallel") == 0
    told = group.gather([sums, metrics.seen_of(module)] if first else None)
    every = [each for each in told if each is not None]
    together = {
        "sums": results.over_ranks([sums for sums, _ in every]),
        "seen": metrics.over_ranks(module, [seen for _, seen in every]),
    }
    # On every rank, since hooks of the script's may be collective; the first rank's is taken.
    mine = _written({**_own(trainer), **together})
    return _read(group.gather_bytes(mine if dist.get_rank() == 0 else b"")[0])


def alone(trainer: Any) -> dict[str, Any]:
    """Give what a trainer has before it has trained."""
    return _read(_written({**_own(trainer), "sums": {}, "seen": {}}))


def restore(trainer: Any, state: dict[str, Any]) -> None:
    """Have a trainer that was just prepared go on from a state, as Lightning resumes."""
    connector = trainer._checkpoint_connector
    connector._loaded_checkpoint = {**{name: {} for name in OF_MODEL}, **state["checkpoint"]}
    connector.restore_model()
    connector.restore_datamodule()
    connector.restore_callbacks()
    connector.restore_training_state()
    connector._loaded_checkpoint = {}
    trainer.should_stop = state["should_stop"]
    for name, logged in zip(LOGGED, state["metrics"], strict=True):
        setattr(trainer._logger_connector, name, dict(logged))
    _settle_loops(trainer)
    parts = results.part_of(state["sums"], trainer.strategy.device_mesh["data_parallel"].size())
    results.put_before(trainer.fit_loop.epoch_loop._results, parts)
    metrics.restore(trainer.lightning_module, state["seen"], _place(trainer, "data_parallel"))


def is_within_epoch(trainer: Any) -> bool:
    """Whether an epoch has begun and is not over."""
    current = trainer.fit_loop.epoch_progress.current
    return bool(current.ready != current.completed)


def _place(trainer: Any, axis: str) -> int:
    found: int = trainer.strategy.device_mesh[axis].get_local_rank()
    return found


def _settle_loops(trainer: Any) -> None:
    """Tell the loops that all they counted is done: Lightning takes it for interrupted.

    It would go through the last validation's end again, step a schedule that waits for a metric
    once more, or begin an epoch whose batches are all read.
    """
    loop, base = trainer.fit_loop, part(trainer, "loops.loop")._Loop
    within = is_within_epoch(trainer)
    base.restarting.fset(loop, within)
    loop.epoch_loop.val_loop.restarting = False
    # Where an epoch begins, so does its iterator, which draws as it would have.
    loop._resuming_from_checkpoint = within


def _own(trainer: Any) -> dict[str, Any]:
    connector = trainer._checkpoint_connector
    with _without_tensors_of_model(trainer):
        whole = connector.dump_checkpoint(weights_only=False)
    named = [each for each in (trainer.lightning_module, trainer.datamodule) if each is not None]
    left_out = {*OF_MODEL, "hparams_name", "datamodule_hparams_name"}
    for each in named:
        left_out |= {each.CHECKPOINT_HYPER_PARAMS_KEY, each.CHECKPOINT_HYPER_PARAMS_NAME}
        left_out.add(each.CHECKPOINT_HYPER_PARAMS_TYPE)
    return {
        "checkpoint": {name: each for name, each in whole.items() if name not in left_out},
        "metrics": [_values(getattr(trainer._logger_connector, name)) for name in LOGGED],
        "should_stop": bool(trainer.should_stop),
    }


def _values(metrics: dict[str, Any]) -> dict[str, Any]:
    """Copy metrics off their device."""
    return {
        name: each.detach().cpu() if isinstance(each, torch.Tensor) else each
        for name, each in metrics.items()
    }


@contextmanager
def _without_tensors_of_model(trainer: Any) -> Iterator[None]:
    """Have `dump_checkpoint` leave model and optimizer out, which it would gather."""
    connector, strategy = trainer._checkpoint_connector, trainer.strategy
    connector._get_lightning_module_state_dict = dict
    strategy.optimizer_state = lambda optimizer: {}
    try:
        yield
    finally:
        del connector._get_lightning_module_state_dict, strategy.optimizer_state


def _written(state: dict[str, Any]) -> bytes:
    """Write plain data and small tensors as bytes.

    Raises:
        InputInvalid: a callback or hook gives what a checkpoint does not store; it is named.
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(plain.encode(state, "lightning", tensors), sort_keys=True).encode()
    # safetensors takes no two of one memory, as a metric has under two names.
    apart = {name: each.clone() for name, each in tensors.items()}
    return len(text).to_bytes(8, "little") + text + safetensors.torch.save(apart)


def _read(data: bytes) -> dict[str, Any]:
    end = 8 + int.from_bytes(data[:8], "little")
    found = plain.decode(json.loads(data[8:end]), safetensors.torch.load(data[end:]))
    assert isinstance(found, dict)
    return found
