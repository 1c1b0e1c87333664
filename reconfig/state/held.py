"""Finds tensors of a layout that outlive its teardown, and the variable that holds them.

A switch in place is refused while more than a few percent of the old layout's bytes are alive. The
user can only correct that with the name of the variable that holds them.

Invariant: the search itself keeps no tensor and no frame alive after `HeldTensors.share`.
"""

import ast
import gc
import inspect
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

import torch

from wattmesh.reconfig.state.state import State

LIVE_SHARE = 0.05
"""Largest share of the old state that may still be alive, because old and new would both be in
memory."""

LONGEST_S = 5.0
"""Time limit of the search, which runs only when the switch has failed already."""

DEEPEST = 40
"""Most references between a tensor and its variable: four per level of modules."""

MOST_AT_ONCE = 50
"""Most objects to follow per distance from the tensor: each is compared with every reference in the
process."""

_OURS = "/wattmesh/"
_OF_MODULES = ("_modules", "_parameters", "_buffers")
_LIBRARIES = ("/torch/", _OURS, "/importlib/", "/threading.py", "/runpy.py")


@dataclass(frozen=True, slots=True)
class HeldTensors:
    """Weak references to a state's tensors, to find those that outlive the teardown."""

    tensors: list[tuple[str, int, "weakref.ref[torch.Tensor]"]]
    allocated: int

    @classmethod
    def of(cls, state: State) -> "HeldTensors":
        """Remember every parameter and optimizer slot of `state`."""
        found: list[tuple[str, int, weakref.ref[torch.Tensor]]] = []
        for module in state.modules:
            for name, parameter in module.named_parameters():
                found.append((name, _bytes(parameter), weakref.ref(parameter)))
        for optimizer in state.optimizers:
            for slots in optimizer.state.values():
                for name, slot in slots.items():
                    if isinstance(slot, torch.Tensor):
                        found.append((name, _bytes(slot), weakref.ref(slot)))
        for slot, averages in state.averages.items():
            for name, average in averages.items():
                found.append((f"{slot} of {name}", _bytes(average), weakref.ref(average)))
        allocated = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        return cls(found, allocated)

    def share(self, device: str) -> tuple[float, str]:
        """Return the share of bytes still alive, and a name with its holder, if that is found."""
        total = sum(size for _, size, _ in self.tensors) or 1
        alive = [(name, size) for name, size, ref in self.tensors if ref() is not None]
        share = sum(size for _, size in alive) / total
        if device != "cpu" and self.allocated:
            share = max(share, torch.cuda.memory_allocated() / self.allocated)
        name = alive[0][0] if alive else "device memory"
        if share <= LIVE_SHARE or not alive:
            return share, name
        first = next(ref for _, _, ref in self.tensors if ref() is not None)
        whose = holder(first)
        return share, f"{name}, held by {whose}" if whose else name


def holder(held: "weakref.ref[Any]", longest_s: float = LONGEST_S) -> str:
    """Name the variable that keeps an object alive; "" when none is found in time.

    It follows referrers from the object, level by level, to a variable: a local of a running
    function or generator, a global of a module, or one in a closure.

    Args:
        held: the object.
        longest_s: time limit of the whole search.
    """
    if held() is None:
        return ""
    until_s = time.monotonic() + longest_s
    # Objects alive at `attach` were frozen, and `get_referrers` does not see frozen objects.
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    try:
        return _climb(held, until_s)
    finally:
        if frozen:
            gc.collect()
            gc.freeze()


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable that leads to the object. `where`: its scope and file."""

    name: str
    where: str

    @property
    def library(self) -> bool:
        """Tell whether it belongs to a library, not to the user."""
        return any(each in self.where for each in _LIBRARIES)

    def path(self, value: object, below: set[int]) -> str:
        """Format it, with the attribute that leads to one of `below`, if there is one."""
        attributes: dict[str, Any] = {}
        with suppress(AttributeError):  # without calling any of the user's code
            attributes = object.__getattribute__(value, "__dict__")
        on = next((key for key, each in [*attributes.items()] if id(each) in below), "")
        on = "" if on in _OF_MODULES else on
        return f"`{self.name}{'.' if on else ''}{on}` {self.where}"


def _climb(held: "weakref.ref[Any]", until_s: float) -> str:
    """Search by distance: the nearest variable of the user, else of a library."""
    running: dict[int, _Variable] = {}
    for key, variable in _running():
        if key not in running or running[key].library:
            running[key] = variable
    level: list[Any] = [held()]
    seen, below, library = {id(level[0])}, set[int](), ""
    for _ in range(DEEPEST):
        found = [(running[id(each)], each) for each in level if id(each) in running]
        following = []
        for each in _referrers(level, seen) if time.monotonic() < until_s else ():
            names = [*_variables(each, level, below)]
            found += names
            if all(variable.library for variable, _ in names):
                following.append(each)
        for variable, value in found:
            if not variable.library:
                return variable.path(value, below)
            library = library or variable.path(value, below)
        below |= {id(each) for each in level}
        level = following[:MOST_AT_ONCE]
    return library


def _referrers(level: list[Any], seen: set[int]) -> Iterator[Any]:
    """Yield new referrers of `level`, except this search's own."""
    if not level:
        return
    for each in gc.get_referrers(*level):
        ours = isinstance(each, FrameType) and each.f_code.co_filename == __file__
        if each is level or ours or isinstance(each, ModuleType) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each


def _running() -> Iterator[tuple[int, _Variable]]:
    """Every local variable of every running function, by the identity of its value."""
    for frame in [*sys._current_frames().values()]:
        inner: FrameType | None = frame
        while inner is not None:
            if inner.f_code.co_filename != __file__:
                yield from _locals(inner)
            inner = inner.f_back


def _locals(frame: FrameType) -> Iterator[tuple[int, _Variable]]:
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return  # the locals of a module are its globals, which are found as such
    values = frame.f_locals
    where = f"in {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
    for name, value in [*values.items()]:
        yield id(value), _Variable(name, where)
    if isinstance(values, dict):
        # Before Python 3.13 this is a copy that the frame keeps, with references to the values.
        values.clear()


def _variables(referrer: Any, level: list[Any], below: set[int]) -> Iterator[tuple[_Variable, Any]]:
    """The variables of `referrer` for objects in `level` (or below), with their values."""
    wanted = {id(each): each for each in level}
    if isinstance(referrer, FunctionType):
        code = referrer.__code__
        where = f"closed over by {code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
        cells = zip(code.co_freevars, referrer.__closure__ or (), strict=False)
        yield from ((_Variable(name, where), cell) for name, cell in cells if id(cell) in below)
    elif isinstance(referrer, dict):
        module = sys.modules.get(str(referrer.get("__name__", "")))
        if module is not None and vars(module) is referrer:
            file = str(referrer.get("__file__"))
            for name, each in [*referrer.items()]:
                if id(each) in wanted:
                    where = f"of module {module.__name__} ({file}{_line(file, name)})"
                    yield _Variable(name, where), each
    elif isinstance(referrer, GeneratorType | CoroutineType):
        frame = referrer.gi_frame if isinstance(referrer, GeneratorType) else referrer.cr_frame
        local = _locals(frame) if frame is not None else ()
        yield from ((variable, wanted[key]) for key, variable in local if key in wanted)


def _line(file: str, name: str) -> str:
    """The last line that assigns a module's variable, as `:LINE`; or ""."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    return "".join(f":{line}" for line in [*_stores(tree, name, here=True)][-1:])


def _stores(within: ast.AST, name: str, *, here: bool) -> Iterator[int]:
    """Lines that assign to a global. `here`: names in this scope are global."""
    for each in ast.iter_child_nodes(within):
        scope = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
        inner = ast.walk(each) if scope else ()
        told = any(isinstance(node, ast.Global) and name in node.names for node in inner)
        if here and isinstance(each, ast.Name) and each.id == name:
            yield from [each.lineno] if isinstance(each.ctx, ast.Store) else []
        yield from _stores(each, name, here=told if scope else here)


def _bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.numel() * local.element_size())
