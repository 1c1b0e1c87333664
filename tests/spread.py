"""Spreads a parallel run (`make test`): what is made once is made once, the longest goes first.

Invariant: tests that share something made once, a module's or a session's fixture, run on one
worker, so no worker makes it a second time. Only what each worker may have for itself is exempt.
Imported by conftest.py, where pytest finds the hook. A run without workers keeps its own order.
"""

from collections.abc import Collection, Mapping, Sequence

import pytest

OF_EACH_WORKER = frozenset({"zygote", "postgresql_server", "undisturbed"})
"""Cheap beside what they serve: a worker that needs one makes one."""

FIRST = ("demo", "hook", "equivalence", "pytorch", "universal", "examples", "profile", "daemon")
"""Folders of long tests: begun last, one of them would keep a single worker busy at the end."""


def bound_together(shared: Sequence[Collection[str]]) -> list[str]:
    """Name the group of each test: tests share a group when something they use links them.

    Args:
        shared: per test, the names of what it uses that is made once.

    Returns:
        Per test, the group's name; empty where the test may run anywhere.
    """
    parent = {name: name for names in shared for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for names in shared:
        for name in names:
            low, high = sorted((root(name), root(min(names))))
            parent[high] = low
    return [root(min(names)) if names else "" for names in shared]


def made_once(path: str, scopes: Mapping[str, str]) -> set[str]:
    """Name what a test of file `path` uses that is made once; `scopes` are of its fixtures."""
    ours = {name: scope for name, scope in scopes.items() if name not in OF_EACH_WORKER}
    modules = {path} if "module" in ours.values() else set()
    return modules | {name for name, scope in ours.items() if scope == "session"}


def turn(path: str) -> int:
    """Place of a file's tests in the order of a parallel run."""
    folders = path.split("/")
    return FIRST.index(folders[1]) if len(folders) > 2 and folders[1] in FIRST else len(FIRST)


def _scopes(item: pytest.Item) -> dict[str, str]:
    """Scopes of the fixtures that our own folders define and a test uses."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return {
        name: str(definitions[-1].scope)
        for name, definitions in known.items()
        if definitions[-1].baseid.startswith("tests")
    }


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the groups and put the long ones first, the same way on every worker."""
    if not hasattr(config, "workerinput"):
        return
    shared = [made_once(item.nodeid.partition("::")[0], _scopes(item)) for item in items]
    groups = bound_together(shared)
    for item, group in zip(items, groups, strict=True):
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: turn(item.nodeid))
