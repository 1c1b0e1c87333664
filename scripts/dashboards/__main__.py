"""Write the dashboards that are shipped.

python -m scripts.dashboards            write
python -m scripts.dashboards --check    write nothing; exit 1 and name the files that are stale
"""

import sys
from pathlib import Path

from scripts.dashboards import made
from wattmesh.durable import write_text

SHIPPED = Path(__file__).resolve().parents[2] / "integrations/grafana/dashboards"


def stale(folder: Path = SHIPPED) -> list[str]:
    """Name the files that differ from what the code gives now, or that it does not give."""
    now = made()
    there = {path.name: path.read_text("utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in {*now, *there} if now.get(name) != there.get(name))


def main(arguments: list[str]) -> int:
    """Write, or check."""
    names = stale()
    if "--check" in arguments:
        for name in names:
            print(f"integrations/grafana/dashboards/{name} is stale: run `make docs`")
        return 1 if names else 0
    for name in names:
        if name in made():
            write_text(SHIPPED / name, made()[name])
        else:
            (SHIPPED / name).unlink()
        print(f"integrations/grafana/dashboards/{name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
