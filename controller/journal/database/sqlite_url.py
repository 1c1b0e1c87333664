"""A SQLite file as a database URL, and back: as SQLAlchemy reads it, where %41 is an A.

Invariant: any path comes back as it went in.
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
    """Give the file of a URL; None of another database's, or of one in memory.

    Raises:
        InputInvalid: it has options, which would be taken for a part of the path here or there.
    """
    scheme, _, path = url.partition(":///")
    if not scheme.startswith("sqlite"):
        return None
    if "?" in url:
        raise InputInvalid(f"journal.url: {url} {OPTIONS}")
    return Path(unquote(path)) if path and path != ":memory:" else None
