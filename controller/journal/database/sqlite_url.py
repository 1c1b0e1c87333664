"""Convert a SQLite file path to a database URL and back, with %-escapes as SQLAlchemy reads them.

Invariant: converting any path to a URL and back gives the same path.
"""

from pathlib import Path
from urllib.parse import unquote

from wattmesh.errors import InputInvalid

OPTIONS = (
    "has something after a `?`, and a SQLite journal takes no options; in a path write %3F for `?` "
    "and %25 for `%`"
)


def sqlite_url(path: Path) -> str:
    """Give the URL of a file."""
    return "sqlite:///" + str(path).replace("%", "%25").replace("?", "%3F")


def sqlite_path(url: str) -> Path | None:
    """Give the file of a SQLite URL; None for another database or one in memory.

    Raises:
        InputInvalid: it has options, which could be read as a part of the path.
    """
    scheme, _, path = url.partition(":///")
    if not scheme.startswith("sqlite"):
        return None
    if "?" in url:
        raise InputInvalid(f"journal.url: {url} {OPTIONS}")
    return Path(unquote(path)) if path and path != ":memory:" else None
