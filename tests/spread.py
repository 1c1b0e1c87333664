"""Spreads a parallel run (`make test`): what is made once is made once, the longest goes first.

Invariant: tests of files that use something made once, a module's or a session's fixture, run on
one worker, so no worker makes it a second time. Only what each worker may have for itself is
exempt. Imported by conftest.py, where pytest finds the hooks; a run without workers is as it was.
xdist's own groups do not hold under pytest 9.2 (they suffix an attribute that is gone).
"""

import re
from collections.abc import Generator, Mapping

import pytest
from xdist.scheduler import LoadScopeScheduling

OF_EACH_WORKER = frozenset({"zygote", "postgresql_server", "undisturbed"})
"""Cheap beside what they serve: a worker that needs one makes one."""

FIRST = (
    *("demo", "hook", "equivalence", "pytorch", "universal", "examples", "profile", "zero"),
    *("attach", "torchtitan", "slurm", "daemon", "journal"),
)
"""Folders of long tests: begun last, one of them would keep a single worker busy at the end."""

TOGETHER = (
    "tests/laws/",
    *(f"tests/docs/test_{name}.py" for name in ("architecture", "glossary", "pages")),
)
"""Folders and files whose tests read what one of them has read: all our sources, parsed."""

FIXTURE = re.compile(r'scope="(module|session)".*\)\ndef (\w+)\(')
ASKED = re.compile(r'[(,]\s*(\w+): |usefixtures\("(\w+)"')
"""What may be a parameter of a test: a name taken for one binds too much, never too little."""


def groups(texts: Mapping[str, str]) -> dict[str, str]:
    """Name the group of each file whose tests must run on one worker; `texts` by path.

    Files share a group when a session's fixture links them, be it through a third file. It
    reaches the folder of the file that makes it, and all folders below.
    """
    made = [(path, *found) for path, text in texts.items() for found in FIXTURE.findall(text)]
    uses: dict[str, set[str]] = {}
    for path, text in texts.items():
        file = path.rpartition("/")[2]
        asked = {name for names in ASKED.findall(text) for name in names}
        shared = {
            name
            for maker, scope, name in made
            if scope == "session" and _reaches(maker, path) and name in asked
        }
        own = (
            {path}
            if any(maker == path and scope == "module" for maker, scope, _ in made)
            else set()
        )
        if file.startswith("test_") and (links := own | (shared - OF_EACH_WORKER)):
            uses[path] = links
    return _joined(uses)


def _reaches(maker: str, path: str) -> bool:
    """Whether a fixture made in one file may be asked for in another."""
    return path.startswith(maker.rpartition("/")[0] + "/")


def _joined(uses: Mapping[str, set[str]]) -> dict[str, str]:
    """Give files that are linked, be it through others, one name: the least of all their links."""
    names = {path: min(links) for path, links in uses.items()}
    while True:
        least = {
            link: min(names[path] for path, links in uses.items() if link in links)
            for link in set().union(*uses.values())
        }
        found = {path: min(least[link] for link in links) for path, links in uses.items()}
        if found == names:
            return names
        names = found


def turn(path: str) -> int:
    """Place of a file's tests in the order of a parallel run."""
    folders = path.split("/")
    return FIRST.index(folders[1]) if len(folders) > 2 and folders[1] in FIRST else len(FIRST)


class Spread(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out tests one by one, and groups whole."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        """Read all tests' files."""
        super().__init__(config, log)
        root = config.rootpath
        files = (root / "tests").rglob("*.py")
        self._groups = groups({str(each.relative_to(root)): each.read_text() for each in files})

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return self._groups.get(path, TOGETHER[0] if path.startswith(TOGETHER) else nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Spread | None:
    """Take the place of xdist's `--dist loadscope`."""
    return Spread(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Put long folders first on every worker, after the others have shuffled."""
    yield
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: turn(item.nodeid))
