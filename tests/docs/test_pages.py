"""Links in our pages lead somewhere, and examples in them are what the commands take."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

from scripts.pages import cli
from tests.laws.sources import modules

REPOSITORY = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def _pages() -> dict[Path, str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (REPOSITORY / name for name in listed.stdout.splitlines())
    return {path: path.read_text("utf-8") for path in paths if path.is_file()}


def _anchors(text: str) -> set[str]:
    """Give the anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken_links(page: Path, text: str) -> list[str]:
    """List links to files or headings that do not exist; addresses elsewhere are left alone."""
    broken = []
    for link in LINK.findall(text):
        name, _, anchor = link.partition("#")
        if "://" in link or name.startswith("mailto:"):
            continue
        target = page if not name else (page.parent / name).resolve()
        if not target.exists():
            broken.append(f"{page.name}: {link}")
        elif anchor and anchor not in _anchors(target.read_text("utf-8")):
            broken.append(f"{page.name}: {link} (no such heading)")
    return broken


def _unknown_commands(text: str, known: set[str]) -> list[str]:
    """List commands in code marks whose first word after `wattmesh` is no command."""
    quoted = re.findall(r"`wattmesh ([a-z-]+)", text)
    return sorted({word for word in quoted if f"wattmesh {word}" not in known})


def test_links_lead_somewhere() -> None:
    """No page links to a file or heading that is not there."""
    assert [each for page, text in _pages().items() for each in _broken_links(page, text)] == []


def test_broken_links_are_caught(tmp_path: Path) -> None:
    """Sabotaged twin: a missing file and a missing heading are both named."""
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](gone.md) [b](#here) [c](#there) [d](page.md#here)")
    assert _broken_links(page, page.read_text()) == [
        "page.md: gone.md",
        "page.md: #there (no such heading)",
    ]


def test_commands_exist() -> None:
    """Pages speak of commands that exist."""
    known = {name for name, _ in cli.commands()}
    unknown = {page.name: _unknown_commands(text, known) for page, text in _pages().items()}
    assert {page: words for page, words in unknown.items() if words} == {}


def test_invented_command_is_caught() -> None:
    """Sabotaged twin: a command that does not exist is named."""
    assert _unknown_commands("run `wattmesh frobnicate now`", {"wattmesh status"}) == ["frobnicate"]


def _promised_pages(source: str) -> set[str]:
    return set(re.findall(r"\bdocs/[\w/-]+\.(?:md|svg|png)", source))


def test_pages_named_in_code_exist() -> None:
    """A docstring or message that sends a person to a page sends them to one that exists."""
    named = {
        f"{module.name}: {page}"
        for module in modules().values()
        for page in _promised_pages(module.path.read_text("utf-8"))
        if not (REPOSITORY / page).is_file()
    }
    assert named == set()


def test_page_named_in_code_is_seen() -> None:
    """Sabotaged twin: the name of a page is found in running text."""
    assert _promised_pages("see (docs/no-such-page.md)") == {"docs/no-such-page.md"}


def _unknown_modules(text: str) -> list[str]:
    """List dotted names of ours that are neither a module nor a name inside of one."""
    known = modules()
    unknown = set()
    for name in set(re.findall(r"\bwattmesh(?:\.[a-z_0-9]+){2,}\b", text)):
        parts = name.split(".")
        longest = next(end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in known)
        if longest < len(parts) and parts[longest] not in _inside(".".join(parts[:longest])):
            unknown.add(name)
    return sorted(unknown)


@cache
def _inside(module: str) -> frozenset[str]:
    """Give the names of all functions of a module, of those inside of others too."""
    found = ast.walk(modules()[module].tree)
    return frozenset(each.name for each in found if isinstance(each, ast.FunctionDef))


def test_modules_named_in_text_exist() -> None:
    """Pages, and programs that are started as text, name modules that can be imported.

    Decisions speak of what was; the folder that only `wattmesh demo` finds is the wheel's.
    """
    pages = {path: text for path, text in _pages().items() if path.parent.name != "decisions"}
    for folder in ("benchmarks", "scripts", "examples"):
        pages |= {path: path.read_text("utf-8") for path in (REPOSITORY / folder).rglob("*.py")}
    unknown = {path.name: _unknown_modules(text) for path, text in pages.items()}
    apart = "wattmesh.shipped."
    found = {(page, name) for page, names in unknown.items() for name in names}
    assert {(page, name) for page, name in found if not name.startswith(apart)} == set()


def test_module_that_moved_away_is_seen() -> None:
    """Sabotaged twin: an import in a program's text that no module answers."""
    moved = "from wattmesh.reconfig.universal.physical import write_physical"
    assert _unknown_modules(moved) == ["wattmesh.reconfig.universal.physical"]
    assert _unknown_modules(moved.replace("universal.", "universal.convert.")) == []


def test_make_targets_exist() -> None:
    """Every `make TARGET` that a page names is in the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = {word for text in _pages().values() for word in re.findall(r"`make ([a-z]+)`", text)}
    assert named - targets == set()
