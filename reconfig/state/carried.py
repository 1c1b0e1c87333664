"""Checks before the first step whether a checkpoint can store a freshly built state.

The slots of torch's own optimizers are known; those of another optimizer are found at the first
save, because stepping it, or a copy, could have side effects (callbacks, random draws, class
counters).

Invariant: nothing in the state is changed, no optimizer is stepped or copied, and nothing waits for
another rank.
"""

import inspect
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.launch.in_step import words
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state import plain
from wattmesh.reconfig.state.boxes import boxes_of
from wattmesh.reconfig.state.memory import dtype_name
from wattmesh.reconfig.state.names import canonical
from wattmesh.reconfig.state.optimizer.optimizers import PARAMS, names_of
from wattmesh.reconfig.state.state import State, Stateful
from wattmesh.reconfig.state.tensors import name_all
from wattmesh.reconfig.universal.index.dtypes import CODES


def problem(state: State, layout: Layout) -> str:
    """Say which part of a freshly built state a checkpoint cannot store; "" for none known.

    Args:
        state: before the first step.
        layout: the layout that it was built for.
    """
    try:
        _check_parts(state)
        for name, tensor in _tensors(state):
            _check_tensor(name, tensor)
        _check_statistics(state, layout)
        _check_optimizers(state)
        named = name_all(state)
        boxes_of(named.tensors)
        _ = named.values
        _check_extra(state.extra, "extra")
        _check_extra(state.by_data_rank, "by_data_rank")
    except InputInvalid as error:
        return str(error)
    except Exception as error:
        # The job's own code in modules and optimizers may raise anything.
        return (
            f"checkpoint: the state from build cannot be examined ({words(error)}); leave "
            "what raises this out of State."
        )
    return ""


def buffers_of(state: State) -> dict[str, str]:
    """Return dtype and shape of every persistent buffer, by name."""
    return {
        canonical(f"{prefix}.{name}".removeprefix(".")): _form(buffer)
        for module in state.modules
        for prefix, each in module.named_modules()
        for name, buffer in torch_compat.saved_buffers(each)
    }


def check_buffers(state: State, built: Mapping[str, str]) -> None:
    """Refuse a buffer of another form than after `build`: its checkpoint could not be loaded.

    Args:
        state: after some steps.
        built: `buffers_of` after `build`.

    Raises:
        InputInvalid: a buffer has grown, or was created later; the message names it.
    """
    for name, form in buffers_of(state).items():
        if built.get(name, _NONE) != form:
            raise InputInvalid(
                f"checkpoint: the buffer {name!r} is {form} and was {built.get(name, _NONE)} when "
                "it was built, so no checkpoint of it could be loaded; give it its whole form in "
                "build, or register it with persistent=False."
            )


_NONE = "not there"


def _form(buffer: torch.Tensor | None) -> str:
    if buffer is None or nn.parameter.is_lazy(buffer):
        return _NONE
    return f"{dtype_name(buffer.dtype)} {tuple(buffer.shape)}"


def _check_parts(state: State) -> None:
    for module in state.modules:
        for name, each in module.named_modules():
            if isinstance(each, FullyShardedDataParallel):
                raise InputInvalid(
                    f"checkpoint: {name or type(module).__name__!r} is wrapped by "
                    "FullyShardedDataParallel (FSDP1), whose flat parameters belong to no "
                    "tensor of another layout; use torch.distributed.fsdp.fully_shard (FSDP2)."
                )


def _tensors(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    for module in state.modules:
        yield from module.named_parameters()
        yield from module.named_buffers()


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise InputInvalid(f"checkpoint: {name!r} is sparse; keep it dense.")
    if dtype_name(tensor.dtype) not in CODES and not tensor.is_complex():
        raise InputInvalid(f"checkpoint: {name!r} is {tensor.dtype}, which no checkpoint stores.")


def _check_statistics(state: State, layout: Layout) -> None:
    """Refuse running statistics that differ between data parallel ranks."""
    if layout.data_parallel == 1:
        return
    kinds = torch_compat.keep_statistics()
    for module in state.modules:
        for name, each in module.named_modules():
            own = isinstance(each, kinds) and not isinstance(each, nn.SyncBatchNorm)
            if own and each.training and each.running_mean is not None:
                raise InputInvalid(
                    f"checkpoint: '{name}.running_mean' of a {type(each).__name__} differs between "
                    f"the {layout.data_parallel} data parallel ranks, as each sees samples of its "
                    "own, so there is no one state to carry; use torch.nn.SyncBatchNorm "
                    "(convert_sync_batchnorm) or a norm without running statistics."
                )


def _check_extra(states: Mapping[str, Stateful], kind: str) -> None:
    for name, each in states.items():
        try:
            told = each.state_dict()
        except Exception as error:
            raise InputInvalid(
                f"checkpoint: State.{kind}[{name!r}] cannot give its state ({words(error)}); mend "
                "its state_dict, or leave it out."
            ) from error
        inside: dict[str, torch.Tensor] = {}
        plain.encode(told, f"{kind}.{name}", inside)
        for where, tensor in inside.items():
            _check_tensor(where, tensor)
        boxes_of(inside)


def _check_optimizers(state: State) -> None:
    names = names_of(state)
    for optimizer in state.optimizers:
        kind = type(optimizer).__name__
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise InputInvalid(
                f"checkpoint: {kind} takes sparse gradients only, so its slots cannot be made "
                "before they are loaded; use Adam or AdamW with sparse=False."
            )
        if _wants_closure(optimizer):
            raise InputInvalid(
                f"checkpoint: {kind} steps by a closure and keeps directions of all parameters "
                "together, which belong to none of them in another layout; use an optimizer with "
                "slots of its own for each parameter."
            )
        if isinstance(optimizer, torch.optim.Adafactor):
            _check_factored(optimizer, names)


def _check_factored(optimizer: torch.optim.Adafactor, names: Mapping[torch.Tensor, str]) -> None:
    for group in optimizer.param_groups:
        for each in group[PARAMS]:
            if each.requires_grad and each.dim() > 1:
                raise InputInvalid(
                    f"checkpoint: Adafactor keeps rows and columns of {names[each]!r} "
                    "('row_var', 'col_var'), and a slot of another shape cannot be sharded with "
                    "its parameter; use an optimizer whose slots have the parameter's shape or "
                    "are one number, as AdamW's."
                )


def _wants_closure(optimizer: torch.optim.Optimizer) -> bool:
    try:
        parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    except (TypeError, ValueError):
        return False
    return any(
        each.default is each.empty
        and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        for each in parameters
    )
