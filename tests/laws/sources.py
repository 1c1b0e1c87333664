"""Our modules, parsed, and what each of them imports and calls.

Invariant: nothing is imported or run here; a law is read off the text alone.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = ("telemetry", "reconfig", "policies", "integrations", "controller", "migrations")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Module:
    """One source file under the name it is imported by; equal to itself alone."""

    name: str
    path: Path
    tree: ast.Module


def parse(name: str, source: str) -> Module:
    """Make a module of a piece of text: what a sabotaged twin is tested on."""
    return Module(name=name, path=Path(f"{name}.py"), tree=ast.parse(source))


def _name_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    inside = parts if parts[0] == "wattmesh" else ("wattmesh", *parts)
    return ".".join(inside).removesuffix(".__init__")


@cache
def modules() -> dict[str, Module]:
    """Parse every module of the package, keyed by the name it is imported by."""
    paths = [*(REPOSITORY / "wattmesh").glob("*.py")]
    for room in ROOMS:
        paths += (REPOSITORY / room).rglob("*.py")
    parsed = (
        Module(name=_name_of(path), path=path, tree=ast.parse(path.read_text("utf-8")))
        for path in sorted(paths)
    )
    return {module.name: module for module in parsed}


@cache
def imports(module: Module) -> tuple[str, ...]:
    """Give the dotted name behind every import statement, wherever in the file it stands.

    `from a import b` gives `a.b`: whether that is a module or a name inside one, the caller knows.
    """
    found: list[str] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


def dotted(node: ast.expr) -> str:
    """Write an attribute chain as text: `datetime.now`; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def calls(module: Module) -> Iterator[tuple[int, str, ast.Call]]:
    """Give every call: its line, the name called as text, and the call itself."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield node.lineno, dotted(node.func), node


@cache
def graph() -> dict[str, frozenset[str]]:
    """Give, for every module of ours, the modules of ours that it imports."""
    known = modules()
    return {name: frozenset(_ours(module, known)) for name, module in known.items()}


def _ours(module: Module, known: dict[str, Module]) -> Iterator[str]:
    for target in imports(module):
        name = target if target in known else target.rpartition(".")[0]
        if name in known and name != module.name:
            yield name
