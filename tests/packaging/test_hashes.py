"""hashes.txt: what a daemon is installed from, whole, at the versions that the tests ran with."""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
Pins = Mapping[str, tuple[str, int]]
"""Version, and number of hashes, by name."""


def pins(text: str) -> Pins:
    """Read a file of pinned requirements."""
    entries = re.findall(
        r"(?m)^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==(\S+)((?: \\\n +--hash=\S+)*)", text
    )
    return {
        canonicalize_name(name): (version, len(re.findall("sha256:[0-9a-f]{64}", hashes)))
        for name, version, hashes in entries
    }


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """Give every package that a requirement brings, its own name among them."""
    yield canonicalize_name(name)
    for text in distribution(name).requires or ():
        asked = Requirement(text)
        marked = asked.marker is None or any(
            asked.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        )
        key = (canonicalize_name(asked.name), ",".join(sorted(asked.extras)))
        if marked and key not in seen:
            seen.add(key)
            yield from needed(asked.name, frozenset(asked.extras), seen)


def wrong(hashed: Pins, constrained: Pins, wanted: set[str]) -> list[str]:
    """Say what of the hashed pins does not fit."""
    found = [f"{name} is missing" for name in sorted(wanted - {*hashed})]
    for name, (version, hashes) in hashed.items():
        if constrained.get(name, ("",))[0] != version:
            found.append(f"{name} is not at the version of constraints.txt")
        if not hashes:
            found.append(f"{name} has no hash")
    return found


def test_every_package_of_the_daemon_is_pinned_with_hashes() -> None:
    """None is missing, none differs from constraints.txt; and what would be wrong is found."""
    hashed = pins((ROOT / "hashes.txt").read_text())
    constrained = pins((ROOT / "constraints.txt").read_text())
    wanted = set(needed("wattmesh", frozenset({"daemon"}), set())) - {"wattmesh"}
    assert len(wanted) > 30
    assert "torch" not in hashed
    assert wrong(hashed, constrained, wanted) == []
    spoilt = {**hashed, "numpy": ("0.1", 5), "scipy": (hashed["scipy"][0], 0)}
    del spoilt["uvicorn"]
    assert wrong(spoilt, constrained, wanted) == [
        "uvicorn is missing",
        "numpy is not at the version of constraints.txt",
        "scipy has no hash",
    ]


def test_constraints_have_no_hashes() -> None:
    """One there would make pip ask for all: of this checkout, and of torch, which none fits."""
    assert "--hash" not in (ROOT / "constraints.txt").read_text()
