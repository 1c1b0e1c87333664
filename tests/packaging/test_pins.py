"""constraints.txt pins every package that `make` installs, and is what is installed."""

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
WITH_PYTHON = "pip"
"""In every new environment, and asked for by pip-audit; set-up installs none."""


def _pins() -> dict[str, Requirement]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


def _asked_for() -> list[str]:
    """List what scripts/setup asks for: `.[daemon,deepspeed, ... ,trackers,dev]`."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    keys = (
        "daemon", "deepspeed", "torchtitan", "huggingface", "lightning", "megatron", "trackers",
        "dev",
    )  # fmt: skip
    chosen = [name for key in keys for name in extras[key]]
    return [*project["dependencies"], *chosen]


def _needed(requirements: Iterable[str], seen: set[str] | None = None) -> set[str]:
    """Follow requirements through what is installed: the names of all packages they bring."""
    seen = set() if seen is None else seen
    for text in requirements:
        wanted = Requirement(text)
        for extra in wanted.extras | {""}:
            key = f"{canonicalize_name(wanted.name)}[{extra}]"
            if key not in seen and _applies(wanted):
                seen.add(key)
                further = distribution(wanted.name).requires or []
                chosen = [each for each in further if _applies(Requirement(each), extra)]
                _needed((each.partition(";")[0] for each in chosen), seen)
    return {re.sub(r"\[.*", "", key) for key in seen} - {WITH_PYTHON}


def _applies(wanted: Requirement, extra: str = "") -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def _unpinned(needed: set[str], pins: Iterable[str]) -> list[str]:
    return sorted(needed - set(pins))


def test_everything_is_pinned() -> None:
    """Direct or not, every package that set-up brings has its version in constraints.txt."""
    assert _unpinned(_needed(_asked_for()), _pins()) == []


def test_lost_pin_is_caught() -> None:
    """Sabotaged twin: a pin of a package that nobody asks for by name is missed when it is gone."""
    pins = {name: pin for name, pin in _pins().items() if name != "markupsafe"}
    assert _unpinned(_needed(_asked_for()), pins) == ["markupsafe"]


def test_pins_are_exact() -> None:
    """Every line names one version."""
    loose = [
        str(pin)
        for pin in _pins().values()
        if not re.fullmatch(r"==(\d+!)?[\w.]+", str(pin.specifier))
    ]
    assert loose == []


def test_installed_is_what_is_pinned() -> None:
    """The tests run on the pinned versions. If this fails: run `make setup`."""
    pins = _pins()
    installed = {name: distribution(name).version for name in _needed(_asked_for())}
    wrong = {
        name: version
        for name, version in installed.items()
        if not pins[name].specifier.contains(version, prereleases=True)
    }
    assert wrong == {}
