"""Whether a freshly built state can be carried at all: asked before the first step, told by name.

What an optimizer will keep is learned from a step of a stand-in with tiny parameters, which leaves
the optimizer, its parameters and the random streams as they are.

Invariant: nothing of the state is changed, and nothing is called that might wait for another rank.
"""

import copy
import inspect
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import plain
from wattmesh.reconfig.boxes import boxes_of
from wattmesh.reconfig.in_step import words
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.memory import dtype_name
from wattmesh.reconfig.optimizers import PARAMS, check_slot, flat, names_of
from wattmesh.reconfig.state import State, Stateful
from wattmesh.reconfig.tensors import name_all
from wattmesh.reconfig.universal.dtypes import CODES

_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_SIDES = (2, 3, 5, 7, 11)
"""Lengths of a stand-in's dims: different, so that a slot cut along one of them shows."""


def problem(state: State, layout: Layout) -> str:
    """Say what of a freshly built state no checkpoint could carry; "" when nothing is known.

    Args:
        state: before the first step.
        layout: it was built for.
    """
    try:
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
    return ""


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
    """Refuse running statistics that each data parallel rank keeps of its own samples."""
    if layout.data_parallel == 1:
        return
    for module in state.modules:
        for name, each in module.named_modules():
            own = isinstance(each, _STATISTICS) and not isinstance(each, nn.SyncBatchNorm)
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
        plain.encode(told, f"{kind}.{name}", {})


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
        for parameter, stand_in, slots in _slots_of_stand_ins(optimizer):
            for key, value in flat(f"optim.state.{names[parameter]}", slots):
                check_slot(key, value, stand_in)


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


def _slots_of_stand_ins(
    optimizer: torch.optim.Optimizer,
) -> list[tuple[torch.Tensor, torch.Tensor, Any]]:
    """A parameter of each kind, its stand-in, and what a step of a copy would keep for it.

    Empty where a copy cannot be made to step: then the first save finds out.
    """
    if optimizer.state or not _is_alone(optimizer):
        return []
    try:
        others = {key: each for key, each in vars(optimizer).items() if key not in _OWN}
        twin = object.__new__(type(optimizer))
        twin.__dict__.update(copy.deepcopy(others))
        # Hooks, and the step that a schedule has wrapped, are the real optimizer's.
        twin.__dict__.update({key: OrderedDict() for key in vars(optimizer) if "_hooks" in key})
        pairs = [_stand_ins(group) for group in optimizer.param_groups]
        twin.state = defaultdict(dict)
        twin.param_groups = [
            {**copy.deepcopy(_settings(group)), PARAMS: [stand_in for _, stand_in in each]}
            for group, each in zip(optimizer.param_groups, pairs, strict=True)
        ]
        device = [each for group in pairs for _, each in group if each.is_cuda]
        with torch.random.fork_rng(devices={each.device for each in device}):
            type(optimizer).step(twin)
    except Exception:
        # An optimizer may be anything; that it cannot be asked so says nothing against it.
        return []
    return [(real, each, twin.state[each]) for group in pairs for real, each in group]


_OWN = ("state", "param_groups", "step")


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != PARAMS}


def _stand_ins(group: Mapping[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One parameter for each number of dims, and a tiny one like it with a gradient of zeros."""
    firsts: dict[int, torch.Tensor] = {}
    for each in group[PARAMS]:
        if each.requires_grad and each.dim() <= len(_SIDES):
            firsts.setdefault(each.dim(), each)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for dims, each in firsts.items():
        tiny = nn.Parameter(torch.zeros(_SIDES[:dims], dtype=each.dtype, device=each.device))
        tiny.grad = torch.zeros_like(tiny)
        found.append((each, tiny))
    return found


def _is_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step touches nothing but what is in the parameter groups.

    Not where the optimizer holds its parameters, or another optimizer, beside them, nor where it
    may talk to other ranks.
    """
    held = {id(each) for group in optimizer.param_groups for each in group[PARAMS]}
    others = [each for key, each in vars(optimizer).items() if key not in _OWN]
    if any(_reaches(each, held) for each in others):
        return False
    modules = {each.__module__ for each in type(optimizer).__mro__}
    return not any(
        _is_distributed(each)
        for name in modules
        if name.partition(".")[0] != "torch" and name in sys.modules
        for each in vars(sys.modules[name]).values()
    )


def _reaches(value: Any, held: set[int]) -> bool:
    if isinstance(value, torch.Tensor | torch.optim.Optimizer | nn.Module):
        return id(value) in held or not isinstance(value, torch.Tensor)
    if isinstance(value, Mapping):
        return any(_reaches(each, held) for each in value.values())
    if isinstance(value, list | tuple | set):
        return any(_reaches(each, held) for each in value)
    return False


def _is_distributed(value: Any) -> bool:
    name = getattr(value, "__name__" if inspect.ismodule(value) else "__module__", "")
    return str(name).startswith("torch.distributed")
