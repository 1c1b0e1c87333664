"""What of a layout outlives its teardown, and who holds it.

A switch in place is refused while more than a few percent of the old layout's bytes live on. Which
variable keeps them alive is the one thing that a person can mend, so it is looked for.

Invariant: looking holds nothing itself: no tensor, and no frame, outlives `Held.share`.
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
"""Above this share of the old state still alive, old and new would be in memory at once."""

LONGEST_S = 5.0
"""For the search; it is made only where the switch is already lost."""

DEEPEST = 40
"""References between a tensor and the variable that holds it: four for each level of modules."""

MOST_AT_ONCE = 50
"""Objects of one distance from the tensor that are followed: each is compared with every reference
in the process."""

_OURS = "/wattmesh/"
_OF_MODULES = ("_modules", "_parameters", "_buffers")
_LIBRARIES = ("/torch/", _OURS, "/importlib/", "/threading.py", "/runpy.py")


@dataclass(frozen=True, slots=True)
class Held:
    """Weak references to a state's tensors, to see after teardown which of them live on."""

    tensors: list[tuple[str, int, "weakref.ref[torch.Tensor]"]]
    allocated: int

    @classmethod
    def of(cls, state: State) -> "Held":
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
        """Share of the bytes still alive, and what is, with who holds it where that is found."""
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
    """Name the variable through which an object is reached; "" when none is found in time.

    Climbs from the object to what refers to it, level by level, until it meets a variable: a local
    of a running function or generator, a global of a module, or one that a function closes over.

    Args:
        held: the object.
        longest_s: for the whole search.
    """
    if held() is None:
        return ""
    until_s = time.monotonic() + longest_s
    # What was alive at `attach` was set aside from collections, and so from `get_referrers`.
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
    """A variable that holds what was looked for, or what leads to it. `where`: whose, and file."""

    name: str
    where: str

    @property
    def library(self) -> bool:
        """Whether it is none of the user's."""
        return any(each in self.where for each in _LIBRARIES)

    def path(self, value: object, below: set[int]) -> str:
        """Name it for a person, with the attribute that leads on to one of `below`, if one does."""
        attributes: dict[str, Any] = {}
        with suppress(AttributeError):  # and nothing of the user's own is called
            attributes = object.__getattribute__(value, "__dict__")
        on = next((key for key, each in [*attributes.items()] if id(each) in below), "")
        on = "" if on in _OF_MODULES else on
        return f"`{self.name}{'.' if on else ''}{on}` {self.where}"


def _climb(held: "weakref.ref[Any]", until_s: float) -> str:
    """Search by distance: the nearest variable of the user's, else the nearest of a library."""
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
    """What refers to any of `level` and was not met before; our own search left out."""
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
    """The local variables of one frame."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return  # a module's are its globals, and found as these
    values = frame.f_locals
    where = f"in {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
    for name, value in [*values.items()]:
        yield id(value), _Variable(name, where)
    if isinstance(values, dict):
        # Before Python 3.13 this is a copy which the frame keeps, and with it what it names.
        values.clear()


def _variables(referrer: Any, level: list[Any], below: set[int]) -> Iterator[tuple[_Variable, Any]]:
    """The variables that `referrer` has for what is in `level` (or below), with their values."""
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
    """Where a module's variable is given its value, the last such place, as `:LINE`; or ""."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    return "".join(f":{line}" for line in [*_stores(tree, name, here=True)][-1:])


def _stores(within: ast.AST, name: str, *, here: bool) -> Iterator[int]:
    """Lines that assign to a global; `here`: whether an assignment in this scope is one."""
    for each in ast.iter_child_nodes(within):
        scope = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
        inner = ast.walk(each) if scope else ()
        told = any(isinstance(node, ast.Global) and name in node.names for node in inner)
        if here and isinstance(each, ast.Name) and each.id == name:
            yield from [each.lineno] if isinstance(each.ctx, ast.Store) else []
        yield from _stores(each, name, here=told if scope else here)


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes of this rank's piece."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.numel() * local.element_size())
