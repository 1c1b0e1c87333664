"""Lightning's Trainer (2.6), in layouts of dp_shard and tp.

    session = attach(name, prepare, global_batch_size=..., checkpoint_dir=...)
    train(session)

`prepare` is the script's: it gives a Trainer that has not trained yet, and what its `fit` takes. It
is called for each layout, and `fit` is called with what it gave.

Invariant: the samples of an optimizer step are the same in every layout: accumulation stays as the
script has it, and the batch of a device follows.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from wattmesh.errors import InputInvalid
from wattmesh.integrations.lightning.data import LoaderOrder, refused_loader
from wattmesh.integrations.lightning.loops import FitProgress, put_before
from wattmesh.integrations.lightning.processes import part, take_group
from wattmesh.integrations.lightning.refusals import (
    check_layout,
    refused_module,
    refused_preparation,
    refused_ranks,
    refused_trainer,
)
from wattmesh.reconfig.hook import session as hook
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.launch.group import mean_over_ranks
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state import streams
from wattmesh.reconfig.state.state import State

CONTAINERS = (list, dict, set, deque)

Prepare = Callable[[], tuple[Any, ...]]
"""The script's: makes a Trainer, and what its `fit` takes: module and data, in that order."""

AfterTraining = Callable[[Any], object]
"""The script's: called with the trainer once it has trained, while all ranks are there."""


def attach(
    name: str,
    prepare: Prepare,
    *,
    global_batch_size: int,
    checkpoint_dir: str | Path,
    boundary_every: int = 20,
    sample_tokens: int = 1,
    layout: Layout | None = None,
    device: str = "",
    **settings: Any,
) -> Session:
    """Attach a script that trains with Lightning's Trainer; see `wattmesh.attach`.

    Args:
        name: what people call the run.
        prepare: gives a Trainer that has not trained yet, and what its `fit` takes.
        global_batch_size: samples of an optimizer step, over all ranks; takes the place of the
            train loader's batch size.
        checkpoint_dir: the run's folder.
        boundary_every: optimizer steps between save steps; Lightning's own are its own matter.
        sample_tokens: tokens of a sample.
        layout: where to begin; None shards over all launched ranks.
        device: "cpu" or "cuda"; "" takes CUDA where it is there.
        settings: passed on to `wattmesh.attach`, as `probe`. Without a probe it is the loss that
            `training_step` gives of two samples.

    Raises:
        InputInvalid: a layout that is not moved to, or a training that is not moved.
    """
    layout = layout or Layout(dp_shard=int(os.environ.get("WORLD_SIZE", "1")))
    check_layout(layout)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    told = SimpleNamespace(
        global_batch_size=global_batch_size,
        sample_tokens=sample_tokens,
        boundary_every=boundary_every,
        device=device,
        loggers=None,
    )
    return hook.attach(
        name,
        build=partial(build_state, prepare, told),
        layout=layout,
        checkpoint_dir=checkpoint_dir,
        boundary_every=boundary_every,
        device=device,
        **{"probe": probe, **settings},
    )


def train(session: Session, then: AfterTraining | None = None) -> None:
    """Train to the end; the loop is Lightning's, and ends where Lightning ends.

    Args:
        session: from `attach`.
        then: called with the trainer after its last step, before the ranks part: for
            `trainer.save_checkpoint(...)`, `trainer.test()` and their like.
    """
    while not session.done:
        trained = _until_left(session, then)
        session.boundary(last=trained)


def _until_left(session: Session, then: AfterTraining | None) -> bool:
    """Train until all is trained or a switch waits; nothing of the trainer outlives this frame."""
    trainer = session.state.parts.trainer
    trained: bool = trainer.go_on_training(session)
    if trained and then is not None:
        then(trainer)
    return trained


def build_state(prepare: Prepare, told: SimpleNamespace, layout: Layout, ranks: Ranks) -> State:
    """Call the script's `prepare` for a layout, and have its trainer prepare. Collective.

    Averages of parameters that the module keeps go with it, as `averages`: by slot ("ema"), then by
    the parameter's name.

    Raises:
        InputInvalid: this is not moved; the sentence says why.
    """
    del ranks
    check_layout(layout)
    trainer = prepared(prepare, told, layout)
    module = trainer.lightning_module
    return State(
        modules=[module],
        optimizers=list(trainer.optimizers),
        averages=dict(getattr(module, "averages", {})),
        extra={"data": trainer.progress.order, "lightning": trainer},
        parts=SimpleNamespace(trainer=trainer),
    )


def prepared(prepare: Prepare, told: SimpleNamespace, layout: Layout) -> Any:
    """Make a trainer for a layout, and have it prepare model, optimizer, schedule and loader.

    Args:
        prepare: the script's.
        told: `global_batch_size`, `sample_tokens`, `boundary_every` and `device` of `attach`, and
            the `loggers` of the first trainer of this process, which go on.
        layout: to be trained.

    Raises:
        InputInvalid: this is not moved; the sentence says why.
    """
    trainer, *fitted = _made(prepare)
    _refuse(refused_trainer(trainer, layout, told.global_batch_size, told.device))
    _refuse(refused_module(fitted[0], len(fitted)))
    window = told.global_batch_size // trainer.accumulate_grad_batches
    take_group(trainer, layout.data_parallel, layout.tp)
    _refuse(refused_ranks(trainer, layout))
    progress = FitProgress(
        sample_tokens=told.sample_tokens, boundary_every=told.boundary_every, window=window
    )
    put_before(trainer, progress)
    if told.loggers is None:
        told.loggers = trainer.loggers
    # A logger made anew would begin another version of the run's folder.
    trainer.loggers = told.loggers
    trainer.fit(*fitted)
    _refuse(refused_preparation(trainer))
    progress.order = _order_of(trainer, window, layout.data_parallel)
    return trainer


def _made(prepare: Prepare) -> tuple[Any, ...]:
    made = prepare()
    if not isinstance(made, tuple) or len(made) < 2:
        raise InputInvalid(
            "Lightning: the script's function gives no tuple of a trainer, a module and data; let "
            "it return `trainer, module, loader`."
        )
    return made


def _order_of(trainer: Any, window: int, data_parallel: int) -> LoaderOrder:
    """Have Lightning prepare the train loader, once for this layout."""
    connector, states = part(trainer, "trainer.connectors.data_connector"), _states(trainer)
    source = trainer.fit_loop._data_source
    given = connector._request_dataloader(source)
    loader = connector._process_dataloader(trainer, *states, given)
    _refuse(refused_loader(loader, window, data_parallel))
    source.instance = loader
    return LoaderOrder(loader, window)


def _states(trainer: Any) -> tuple[Any, Any]:
    states = part(trainer, "trainer.states")
    return states.TrainerFn.FITTING, states.RunningStage.TRAINING


def _refuse(words: str) -> None:
    if words:
        raise InputInvalid(f"Lightning: {words}.")


def probe(state: State) -> float:
    """Return the loss of the first two samples of the data set, the same on every rank. Collective.

    It is what the module's `training_step` gives in evaluation, logging nothing.
    """
    trainer = state.parts.trainer
    return mean_over_ranks(_loss_of(trainer, trainer.progress.order.first_samples()).double())


def _loss_of(trainer: Any, batch: Any) -> torch.Tensor:
    """Return the loss of a batch, which leaves nothing behind."""
    module, strategy = trainer.lightning_module, trainer.strategy
    batch = trainer.precision_plugin.convert_input(batch)
    batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
    batch = strategy.batch_to_device(batch, dataloader_idx=0)
    named = trainer.fit_loop.epoch_loop._build_kwargs({}, batch, 0)
    with _unnoticed(module), torch.no_grad():
        found = strategy.training_step(*named.values())
    loss: torch.Tensor = found["loss"] if isinstance(found, dict) else found
    return loss


@contextmanager
def _unnoticed(module: Any) -> Iterator[None]:
    """Put a module into evaluation, with the same draws each time, and undo what a step does."""
    before = [(each, _attributes(each)) for each in module.modules()]
    metrics = [(each, _seen(each)) for each in module.modules() if hasattr(each, "_update_count")]
    drawn = streams.now()
    module.eval()
    # `log` fails outside Lightning's loops.
    vars(module)["log"] = _log_nothing
    torch.manual_seed(1)
    try:
        yield
    finally:
        del vars(module)["log"]
        streams.set_to(drawn)
        for each, attributes in before:
            _set_back(each, attributes)
        for each, seen in metrics:
            vars(each).update(seen)


def _attributes(module: Any) -> dict[str, tuple[Any, Any]]:
    """Note a module's own attributes, as the counts and lists that a `training_step` keeps.

    Each with a copy of what is in it; what begins with "_" is torch's or Lightning's.
    """
    kept = {name: each for name, each in vars(module).items() if not name.startswith("_")}
    return {
        name: (each, copy(each) if isinstance(each, CONTAINERS) else None)
        for name, each in kept.items()
    }


def _set_back(module: Any, attributes: dict[str, tuple[Any, Any]]) -> None:
    """Undo what was set or put in since `_attributes`."""
    found = vars(module)
    for name in [each for each in found if not each.startswith("_") and each not in attributes]:
        del found[name]
    for name, (each, content) in attributes.items():
        found[name] = each
        if content is not None:
            each.clear()
            (each.extend if isinstance(each, list | deque) else each.update)(content)


def _seen(metric: Any) -> dict[str, Any]:
    """Copy what a metric of torchmetrics has seen; it may add in place."""
    names = [*metric._defaults, "_update_count", "_computed", "_forward_cache"]
    return {name: _copied(getattr(metric, name)) for name in names}


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return list(value)
    return value.clone() if isinstance(value, torch.Tensor) else value


def _log_nothing(*args: Any, **named: Any) -> None:
    """Stand in for `log`."""
