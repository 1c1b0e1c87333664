"""The one place for private parts of torch that the hook and our parts of trainers use.

Each part is looked up when it is first needed, never at import: a torch that lacks it breaks
neither a user's import nor a run that does not need it, and the error names the part.

Invariant: no other module of this room, and none of `integrations/pytorch`, uses a private part of
torch, and importing this one imports nothing of torch.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from wattmesh.errors import InputInvalid

OLDEST, NEWEST = "2.11", "2.13"
"""Minor versions of torch: all tests run with the newest, some with the others (`make
torch-versions`)."""


def find(module: str, name: str) -> Any:
    """Return a private part of a torch module.

    Raises:
        InputInvalid: this torch does not have it.
    """
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _lacks(f"{module}.{name}") from error


def part_of(thing: Any, name: str) -> Any:
    """Return a private attribute of one of torch's objects.

    Raises:
        InputInvalid: this torch's object does not have it.
    """
    try:
        return getattr(thing, name)
    except AttributeError as error:
        raise _lacks(f"{type(thing).__name__}.{name}") from error


def _lacks(what: str) -> InputInvalid:
    torch: Any = sys.modules.get("torch")
    version = getattr(torch, "__version__", "this torch")
    return InputInvalid(
        f"torch {version} has no {what}, which wattmesh needs; it is tested with torch "
        f"{OLDEST} to {NEWEST}: use one of them in this environment, or a wattmesh for yours."
    )


def own_piece(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and the global offset of this rank's shard of a DTensor."""
    reckon = find("torch.distributed.tensor._utils", "compute_local_shape_and_global_offset")
    shape, offset = reckon(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(shape), tuple(offset)


def set_element(state_dict: Any, path: Any, value: Any) -> None:
    """Set a value in a nested state dict, at a path of DCP's planner."""
    find("torch.distributed.checkpoint._traverse", "set_element")(state_dict, path, value)


def buffers(module: Any) -> dict[str, Any]:
    """Return the dict of a module's own buffers, some maybe None.

    Writing to it changes the module.
    """
    found: dict[str, Any] = part_of(module, "_buffers")
    return found


def parameters(module: Any) -> dict[str, Any]:
    """Return the dict of a module's own parameters, some maybe None.

    Writing to it changes the module.
    """
    found: dict[str, Any] = part_of(module, "_parameters")
    return found


def saved_buffers(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield a module's own persistent buffers, by name."""
    left_out = part_of(module, "_non_persistent_buffers_set")
    return ((name, each) for name, each in buffers(module).items() if name not in left_out)


def give_storage(module: Any, make: Callable[[Any], Any]) -> None:
    """Replace every parameter and buffer of a module and its children by `make` of it."""
    part_of(module, "_apply")(make)


def is_hooked(module: Any) -> bool:
    """Return whether a hook of its own, or a patched `forward`, sees what a module gives."""
    hooks = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(part_of(module, name) for name in hooks) or "forward" in vars(module)


def hooks_of_all_modules() -> tuple[Any, ...]:
    """Return the tables of hooks that see what every module gives, as they are filled later."""
    names = ("_global_forward_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
    return tuple(find("torch.nn.modules.module", name) for name in names)


def norms(tensors: list[Any]) -> list[Any]:
    """Return the 2-norm of each tensor, by one call for all."""
    found: list[Any] = find("torch", "_foreach_norm")(tensors)
    return found


def scale(tensors: list[Any], factor: float) -> None:
    """Multiply each tensor in place, by one call for all."""
    find("torch", "_foreach_mul_")(tensors, factor)


def approach(tensors: list[Any], ends: list[Any], weight: float) -> None:
    """Move each tensor in place by `weight` of the way to its end, by one call for all."""
    find("torch", "_foreach_lerp_")(tensors, ends, weight)


def keep_statistics() -> tuple[type, ...]:
    """Return the classes of modules with running statistics of their samples."""
    return (
        find("torch.nn.modules.batchnorm", "_BatchNorm"),
        find("torch.nn.modules.instancenorm", "_InstanceNorm"),
    )


def version_of(tensor: Any) -> int:
    """Return a tensor's version: the number of in-place writes."""
    return int(part_of(tensor, "_version"))


def load_hooks(module: Any) -> list[Any]:
    """Return the hooks on a module's `load_state_dict`."""
    before = part_of(module, "_load_state_dict_pre_hooks")
    return [*before.values(), *part_of(module, "_load_state_dict_post_hooks").values()]


def is_of_fsdp(hook: Any) -> bool:
    """Tell whether a hook is FSDP2's own.

    It reshards parameters, which naming them has done already.
    """
    # torch wraps some hooks in objects with an attribute `hook`.
    defined_in = str(getattr(getattr(hook, "hook", hook), "__module__", ""))
    return defined_in.startswith("torch.distributed.fsdp._fully_shard")


def loads_by_itself(kind: Any) -> bool:
    """Tell whether a module class overrides how its own tensors are loaded."""
    plain = find("torch.nn", "Module")
    name = "_load_from_state_dict"
    return part_of(kind, name) is not part_of(plain, name)


def step_hooks(optimizer: Any) -> list[dict[Any, Any]]:
    """Return the dicts of step hooks: those of all optimizers, and this one's."""
    of_all = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    own = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    tables: list[dict[Any, Any]] = [find("torch.optim.optimizer", name) for name in of_all]
    return tables + [part_of(optimizer, name) for name in own]


def hears_of_loads(optimizer: Any) -> bool:
    """Tell whether an optimizer has hooks on `load_state_dict`."""
    names = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
    return any(part_of(optimizer, name) for name in names)


def forget_shardings() -> None:
    """Clear this thread's caches of sharding propagation and redistribution."""
    native = getattr(find("torch", "_C"), "_clear_DTensor_sharding_propagator_cache", None)
    if native is None:
        find("torch.distributed.tensor.debug", "_clear_sharding_prop_cache")()
    else:
        # What that does. Importing it brings the compiler: half a second of a run's first switch.
        dispatcher = part_of(find("torch.distributed.tensor", "DTensor"), "_op_dispatcher")
        propagator = part_of(dispatcher, "sharding_propagator")
        part_of(propagator, "propagate_op_sharding").cache_clear()
        native()
    find("torch.distributed.tensor._redistribute", "clear_redistribute_planner_cache")()


def forget_compiled() -> None:
    """Reset torch.compile, whose guards and captured graphs keep modules alive."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def has_compiled() -> bool:
    """Tell whether torch.compile was used in this process."""
    return "torch._dynamo" in sys.modules


def free_workspaces() -> None:
    """Free the cuBLAS workspaces, which torch counts as allocated memory.

    cuBLAS keeps some 32 MiB for each stream that it used: more than a small model's state, so that
    a freed state would look as if it were still held. They are allocated again when needed.
    """
    clear: Callable[[], None] | None = getattr(
        find("torch", "_C"), "_cuda_clearCublasWorkspaces", None
    )
    if clear is not None:  # absent from CPU builds
        clear()


def process_groups() -> list[Any]:
    """Return every process group; the list keeps them alive."""
    return list(part_of(find("torch.distributed.distributed_c10d", "_world"), "pg_map"))


def abort_on_cuda(process_group: Any) -> None:
    """Abort a process group's CUDA backend, if it has one."""
    device = find("torch", "device")("cuda")
    with suppress(RuntimeError, ValueError, AttributeError):
        process_group._get_backend(device).abort()


def dispatch_mode() -> Any:
    """Return TorchDispatchMode, whose subclasses see every operator within a block."""
    return find("torch.utils._python_dispatch", "TorchDispatchMode")


def no_modes() -> Any:
    """Return a block within which no mode sees operators: selective recomputation, for one."""
    return find("torch.utils._python_dispatch", "_disable_current_modes")()


def has_modes() -> bool:
    """Tell whether a mode sees operators, and may keep what they give, as `no_modes` says."""
    return bool(find("torch._C", "_len_torch_dispatch_stack")())


def nccl_version() -> tuple[int, ...]:
    """Return the version of NCCL that torch was built with; empty where it has none."""
    import torch  # noqa: PLC0415

    if not torch.distributed.is_nccl_available():
        return ()
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return version
