"""Write everything in docs/ that is made from code: the reference pages and two pictures.

    python -m scripts.reference            write
    python -m scripts.reference --check    write nothing; exit 1 and name the pages that are stale

Invariant: the same code gives the same bytes, on any machine.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from scripts import diagram, energy_picture
from scripts.pages import api, cli, errors, metrics, settings, switch
from wattmesh.durable import write_text

DOCS = Path(__file__).resolve().parents[1] / "docs"


def pages() -> Mapping[str, str]:
    """Make every page: its path under docs/ and its content."""
    return {
        "cycle.svg": diagram.render(),
        "energy.svg": energy_picture.render(),
        "reference/api.md": api.render(),
        "reference/cli.md": cli.render(),
        "reference/errors.md": errors.render(),
        "reference/metrics.md": metrics.render(),
        "reference/settings.md": settings.render(),
        "reference/switch.md": switch.render(),
    }


def stale(made: Mapping[str, str], folder: Path = DOCS) -> list[str]:
    """Name the pages whose file differs from what the code gives now."""
    return [
        name
        for name, content in made.items()
        if not (folder / name).is_file() or (folder / name).read_text("utf-8") != content
    ]


def main(arguments: list[str]) -> int:
    """Write, or check."""
    # Defaults of settings follow these where a service manager sets them; the manual does not.
    for name in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "WATTMESH_URL"):
        os.environ.pop(name, None)
    made = pages()
    names = stale(made)
    if "--check" in arguments:
        for name in names:
            print(f"docs/{name} is stale: run `make docs`", file=sys.stderr)
        return 1 if names else 0
    for name in names:
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(DOCS / name, made[name])
        print(f"docs/{name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
