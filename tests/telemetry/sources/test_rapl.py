"""Processors through RAPL: a real folder laid out as the kernel's, and the ledger's rules on it."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.energy.meter import EnergyPiece, MeterState
from wattmesh.telemetry.readings import Component, PowerReading
from wattmesh.telemetry.sources.rapl import RaplSource, Zone, mean_power_w, zones

RANGE_UJ = 262_143_328_850


@dataclass
class Tree:
    """A powercap tree of one or more packages, each with core, uncore and DRAM."""

    root: Path
    zones: dict[str, Path] = field(default_factory=dict)

    def add(self, folder: str, name: str, *, limit_uw: int | None = None) -> Path:
        """Make a zone."""
        path = self.root / folder
        path.mkdir(parents=True)
        (path / "name").write_text(f"{name}\n")
        (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        (path / "energy_uj").write_text("0\n")
        if limit_uw is not None:
            (path / "constraint_0_power_limit_uw").write_text(f"{limit_uw}\n")
        self.zones[folder] = path
        return path

    def show(self, folder: str, energy_uj: int) -> None:
        """Let a counter show this."""
        (self.zones[folder] / "energy_uj").write_text(f"{energy_uj % RANGE_UJ}\n")


def machine(root: Path) -> Tree:
    """Make a machine of two packages, as the kernel shows it."""
    made = Tree(root)
    for package in (0, 1):
        made.add(f"intel-rapl:{package}", f"package-{package}", limit_uw=225_000_000)
        made.add(f"intel-rapl:{package}:0", "core")
        made.add(f"intel-rapl:{package}:1", "uncore")
        made.add(f"intel-rapl:{package}:2", "dram")
    made.add("intel-rapl:2", "psys")
    (made.root / "intel-rapl").mkdir()
    return made


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A machine of the test's own."""
    return machine(tmp_path / "powercap")


def by_name(source: RaplSource) -> dict[str, PowerReading]:
    """Read once."""
    return {each.gpu_uuid: each for each in source.read()}


def test_packages_and_their_memory_are_read_and_no_part_twice(tree: Tree) -> None:
    """Core, uncore and psys are left out: they are parts of, or hold, what is read."""
    tree.show("intel-rapl:0", 5_000_000_000)
    tree.show("intel-rapl:1:2", 1_234_567)
    readings = by_name(RaplSource(tree.root, "n1"))
    assert {name: each.component for name, each in readings.items()} == {
        "cpu:n1:package-0": Component.CPU,
        "cpu:n1:package-1": Component.CPU,
        "dram:n1:package-0": Component.DRAM,
        "dram:n1:package-1": Component.DRAM,
    }
    package = readings["cpu:n1:package-0"]
    assert (package.energy_mj, package.power_limit_w) == (5_000_000, 225.0)
    assert (package.power_w, package.wraps_mj) == (None, RANGE_UJ // 1000)
    assert readings["dram:n1:package-1"].energy_mj == 1234


def test_the_power_is_the_mean_since_the_reading_before(tree: Tree) -> None:
    """A second reading tells a power, also over the counter's end."""
    source = RaplSource(tree.root, "n1")
    tree.show("intel-rapl:0", RANGE_UJ - 1_000_000)
    source.read()
    before, zone = source._before["cpu:n1:package-0"], zone_of(tree)
    after = type(before)(energy_uj=9_000_000, at_s=before.at_s + 0.1)
    assert mean_power_w(before, after, zone) == pytest.approx(100.0)


def test_a_counter_that_begins_again_tells_no_power(tree: Tree) -> None:
    """It looks wrapped, and a quarter of a megajoule in a tenth of a second is no power."""
    source = RaplSource(tree.root, "n1")
    source.read()
    before = source._before["cpu:n1:package-0"]
    after = type(before)(energy_uj=before.energy_uj - 1, at_s=before.at_s + 0.1)
    assert mean_power_w(before, after, zone_of(tree)) is None


def zone_of(tree: Tree) -> Zone:
    """Give the zone of the first package."""
    return next(each for each in zones(tree.root, "n1") if each.name == "cpu:n1:package-0")


def test_a_mean_over_no_time_or_a_long_one_is_unknown(tree: Tree) -> None:
    """Unknown is None, never zero or a guess."""
    source = RaplSource(tree.root, "n1")
    source.read()
    before, zone = source._before["cpu:n1:package-0"], zone_of(tree)
    later = type(before)(energy_uj=before.energy_uj + 60_000_000, at_s=before.at_s + 6)
    assert mean_power_w(before, later, zone) == 10.0
    assert mean_power_w(before, before, zone) is None
    assert mean_power_w(before, type(before)(energy_uj=0, at_s=before.at_s + 61), zone) is None


def piece(tree: Tree, *, seconds: float, watts: float) -> EnergyPiece:
    """Book one look after so long at a constant power, from just below the counter's end."""
    start_uj = RANGE_UJ - 10_000_000
    tree.show("intel-rapl:0", start_uj)
    first = by_name(RaplSource(tree.root, "n1"))["cpu:n1:package-0"]
    tree.show("intel-rapl:0", start_uj + round(seconds * watts * 1e6))
    then = by_name(RaplSource(tree.root, "n1"))["cpu:n1:package-0"]
    meter = MeterState.first(first)
    shown = PowerReading(
        **{
            **{name: getattr(then, name) for name in then.__slots__},
            "monotonic_s": first.monotonic_s + seconds,
        }
    )
    advanced = meter.advanced(shown, hold_us=5_000_000)
    assert advanced is not None
    return advanced[1]


def test_a_counter_that_wrapped_is_booked_whole(tree: Tree) -> None:
    """Past its end it begins at zero, and nothing is lost: five minutes at 200 W are 60 kJ."""
    booked = piece(tree, seconds=300, watts=200)
    assert booked.energy_mj is not None
    assert abs(booked.energy_mj - 60_000_000) <= 1
    assert booked.note == ""


def test_a_counter_that_may_have_wrapped_twice_is_not_believed(tree: Tree) -> None:
    """After an hour nobody knows how often: unobserved, with the limit as its upper estimate."""
    booked = piece(tree, seconds=3600, watts=200)
    assert (booked.energy_mj, booked.note) == (None, "counter wrapped")
    assert (booked.unobserved_ms, booked.upper_mj) == (3_600_000, 225 * 3_600_000)


def test_a_counter_that_goes_on_after_a_restart_is_booked(tree: Tree) -> None:
    """What was booked up to is kept as it was shown, so that wraps are known after a restart."""
    booked = piece(tree, seconds=20, watts=150)
    assert booked.energy_mj == 3_000_000


def test_a_machine_without_rapl_says_what_to_set(tmp_path: Path) -> None:
    """No tree at all is one sentence with the way out."""
    with pytest.raises(SourceUnavailable, match=r"power\.rapl"):
        RaplSource(tmp_path / "none", "n1").read()
    assert RaplSource(tmp_path / "none", "n1").gpu_uuids() == []


def test_a_zone_that_is_damaged_is_left_out(tree: Tree) -> None:
    """A counter that shows no number, or no range, costs only itself."""
    (tree.zones["intel-rapl:0"] / "energy_uj").write_text("")
    (tree.zones["intel-rapl:1"] / "max_energy_range_uj").write_text("0")
    names = set(by_name(RaplSource(tree.root, "n1")))
    assert names == {"dram:n1:package-0", "dram:n1:package-1"}


READ_AS_NOBODY = """
import os, sys
from pathlib import Path
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.sources.rapl import RaplSource
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    RaplSource(Path(sys.argv[1]), "n1").read()
except SourceUnavailable as error:
    print(error)
"""


def test_without_the_right_to_read_it_says_how_to_get_it() -> None:
    """A counter that only root may read: one sentence that names the file and the way out."""
    with TemporaryDirectory() as folder:  # outside pytest's own, which nobody else may enter
        Path(folder).chmod(0o755)
        tree = machine(Path(folder) / "powercap")
        for path in tree.zones.values():
            (path / "energy_uj").chmod(0o400 if os.geteuid() == 0 else 0)
        said = subprocess.run(
            [sys.executable, "-c", READ_AS_NOBODY, str(tree.root)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    assert "energy_uj may not be read" in said
    assert "CAP_DAC_READ_SEARCH" in said
