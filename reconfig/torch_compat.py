"""Everything private of torch that the hook touches, in one place.

Each thing is looked up when it is first needed, never when a module is imported: a torch that
lacks it breaks neither a user's import nor a run that does not need it, and is told by name.
Invariant: no other module of this room names a private part of torch, and this one imports nothing
of torch before it is asked.
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
    """Give a private part of torch.

    Raises:
        InputInvalid: this torch has none of that name.
    """
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _lacks(f"{module}.{name}") from error


def part_of(thing: Any, name: str) -> Any:
    """Give a private part of one of torch's own objects.

    Raises:
        InputInvalid: this torch's objects have none of that name.
    """
    try:
        return getattr(thing, name)
    except AttributeError as error:
        raise _lacks(f"{type(thing).__name__}.{name}") from error


def _lacks(what: str) -> InputInvalid:
    torch: Any = sys.modules.get("torch")
    version = getattr(torch, "__version__", "this torch")
    return InputInvalid(
        f"torch {version} has no {what}, which wattmesh needs here; it is tested with torch "
        f"{OLDEST} to {NEWEST}: use one of them in this environment, or a wattmesh made for yours."
    )


def own_piece(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give the shape of this rank's piece of a DTensor, and where in the whole it begins."""
    reckon = find("torch.distributed.tensor._utils", "compute_local_shape_and_global_offset")
    shape, offset = reckon(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(shape), tuple(offset)


def set_element(state_dict: Any, path: Any, value: Any) -> None:
    """Put a value into a nested state dict, as DCP's planner names its place."""
    find("torch.distributed.checkpoint._traverse", "set_element")(state_dict, path, value)


def buffers(module: Any) -> dict[str, Any]:
    """Give a module's own buffers by name, None where one is not there; what is written counts."""
    found: dict[str, Any] = part_of(module, "_buffers")
    return found


def saved_buffers(module: Any) -> Iterator[tuple[str, Any]]:
    """Give those of a module's own buffers that its state dict holds."""
    left_out = part_of(module, "_non_persistent_buffers_set")
    return ((name, each) for name, each in buffers(module).items() if name not in left_out)


def keep_statistics() -> tuple[type, ...]:
    """Give the classes of modules that keep running statistics of the samples they saw."""
    return (
        find("torch.nn.modules.batchnorm", "_BatchNorm"),
        find("torch.nn.modules.instancenorm", "_InstanceNorm"),
    )


def version_of(tensor: Any) -> int:
    """Count how often a tensor was written in place."""
    return int(part_of(tensor, "_version"))


def load_hooks(module: Any) -> list[Any]:
    """Give who wants to hear when a module loads a state dict."""
    before = part_of(module, "_load_state_dict_pre_hooks")
    return [*before.values(), *part_of(module, "_load_state_dict_post_hooks").values()]


def is_of_fsdp(hook: Any) -> bool:
    """Whether a hook is FSDP2's own: it puts gathered parameters back, as naming them has done."""
    # torch wraps some hooks into objects with a `hook`.
    defined_in = str(getattr(getattr(hook, "hook", hook), "__module__", ""))
    return defined_in.startswith("torch.distributed.fsdp._fully_shard")


def loads_by_itself(kind: Any) -> bool:
    """Whether a class of modules says itself how one of it takes its own tensors."""
    plain = find("torch.nn", "Module")
    name = "_load_from_state_dict"
    return part_of(kind, name) is not part_of(plain, name)


def step_hooks(optimizer: Any) -> list[dict[Any, Any]]:
    """Give the tables of who wants to hear of an optimizer's steps: of all, and of this one's."""
    of_all = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    own = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    tables: list[dict[Any, Any]] = [find("torch.optim.optimizer", name) for name in of_all]
    return tables + [part_of(optimizer, name) for name in own]


def hears_of_loads(optimizer: Any) -> bool:
    """Whether somebody wants to hear when an optimizer loads a state dict."""
    names = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
    return any(part_of(optimizer, name) for name in names)


def forget_shardings() -> None:
    """Empty this thread's caches of how operations on sharded tensors are carried out."""
    find("torch.distributed.tensor.debug", "_clear_sharding_prop_cache")()
    find("torch.distributed.tensor._redistribute", "clear_redistribute_planner_cache")()


def forget_compiled() -> None:
    """Drop what torch.compile made, which holds modules by its guards, and its captured graphs."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def has_compiled() -> bool:
    """Whether torch.compile was used in this process."""
    return "torch._dynamo" in sys.modules


def free_workspaces() -> None:
    """Give back what matrix products keep on devices, which torch counts as allocated.

    cuBLAS has some 32 MiB for each stream that it ever worked on: more than a small model's state,
    which then seems to be held although it is gone. They are made again when next needed.
    """
    clear: Callable[[], None] | None = getattr(
        find("torch", "_C"), "_cuda_clearCublasWorkspaces", None
    )
    if clear is not None:  # absent from CPU builds
        clear()


def process_groups() -> list[Any]:
    """Give every process group that torch knows of, which keeps each from being destroyed."""
    return list(part_of(find("torch.distributed.distributed_c10d", "_world"), "pg_map"))


def abort_on_cuda(process_group: Any) -> None:
    """Abort what a process group runs on CUDA devices; nothing where it runs nothing there."""
    device = find("torch", "device")("cuda")
    with suppress(RuntimeError, ValueError, AttributeError):
        process_group._get_backend(device).abort()


def dispatch_mode() -> Any:
    """Give the class whose subclasses see every operator within a block."""
    return find("torch.utils._python_dispatch", "TorchDispatchMode")
