"""docs/reference/settings.md: every key of the settings file, and a file to start from."""

from scripts.pages.markdown import block, code, page, table
from wattmesh.controller.settings.text import keys, sample

INTRODUCTION = """One TOML file. `wattmesh settings sample` prints one to start from,
`wattmesh settings check FILE` names every mistake at once, and SIGHUP makes a running daemon read
it again. `<name>` stands for a name of your choice. A key without a default that is not marked
*required* is simply unset."""


def render() -> str:
    """Write the page."""
    rows = ((code(key.path), key.kind, code(key.default), key.meaning) for key in keys())
    listed = table(("key", "kind", "default", "meaning"), rows)
    start = f"## The sample file\n\n{block(sample()).replace('text', 'toml', 1)}"
    return page("Settings", INTRODUCTION, listed, start)
