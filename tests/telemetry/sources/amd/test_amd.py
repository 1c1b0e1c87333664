"""AMD GPUs through the real `amdsmi` package: what is read, and what is not believed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from tests.telemetry.sources.amd.library import Board, Boards, build
from wattmesh.controller.daemon.power import power_source
from wattmesh.controller.settings.read import parse
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.readings import PowerReading, Quality
from wattmesh.telemetry.sources import amd
from wattmesh.telemetry.sources.amd import AmdDevice, AmdSource

FIRST, SECOND = "0000:0c:00.0", "0000:22:00.0"
TICK_UJ = 15.3


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, loaded with our library; the folder that stands for ROCm."""
    folder = tmp_path_factory.mktemp("rocm")
    build(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ROCM_HOME", raising=False)
        patch.setenv("ROCM_PATH", str(folder))
        import_module("amdsmi")
    return folder


@pytest.fixture
def boards(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> Boards:
    """Two boards."""
    assert package.is_dir()
    made = Boards(tmp_path / "boards", [Board(FIRST, "gpu-a"), Board(SECOND, "gpu-b", watts=300)])
    made.tell()
    monkeypatch.setenv("AMD_FAKE", str(made.file))
    return made


@pytest.fixture
def source(boards: Boards, monkeypatch: pytest.MonkeyPatch) -> Iterator[AmdSource]:
    """A source that believes a counter after a second, and looks for lost ones often."""
    made = AmdSource(trial_s=1.0)
    made._patience.wait_s = 0.0
    monkeypatch.setattr("wattmesh.telemetry.sources.gpu_threads.RETRY_S", 0.0)
    yield made
    boards.hangs_s = 0
    boards.tell()
    made.close()


def by_uuid(source: AmdSource) -> dict[str, PowerReading]:
    """Read once; nothing while it is not open."""
    try:
        return {each.gpu_uuid: each for each in source.read()}
    except SourceUnavailable:
        return {}


def judged(boards: Boards, source: AmdSource, speed: float) -> dict[str, PowerReading]:
    """Let the counters move, and read until the source has judged them."""
    for each in boards.boards:
        each.speed = speed
    boards.tell()

    def over() -> bool:
        by_uuid(source)
        devices = [each.device for each in source._gpus.values()]
        return len(devices) == 2 and None not in {getattr(each, "counts", 0) for each in devices}

    wait_for(over, "a judgement")
    return by_uuid(source)


def test_boards_are_read_and_a_counter_counts_once_it_agrees_with_power(
    boards: Boards, source: AmdSource
) -> None:
    """Until then power is integrated; both say that the library is a fake."""
    wait_for(lambda: len(by_uuid(source)) == 2, "both boards")
    first = by_uuid(source)["gpu-a"]
    assert (first.power_w, first.clock_mhz, first.power_limit_w) == (500.0, 2100, 750.0)
    assert (first.utilization, first.shared, first.quality) == (0.97, "", Quality.SIMULATED)
    told = judged(boards, source, 1.0)
    assert {each.source for each in told.values()} == {"amdsmi"}
    board, read = boards.boards[0], told["gpu-a"]
    expected_mj = board.ticks * TICK_UJ / 1000 + 500e3 * (read.monotonic_s - board.since_s)
    assert read.energy_mj is not None
    assert abs(read.energy_mj - expected_mj) < 500e3 * (time.monotonic() - read.monotonic_s + 1)


@pytest.mark.parametrize("speed", [0.1, 16.0, 1000.0])
def test_a_counter_in_another_unit_is_never_booked(
    boards: Boards, source: AmdSource, speed: float
) -> None:
    """Power is integrated instead, for good."""
    told = judged(boards, source, speed)
    assert {each.source for each in told.values()} == {"amdsmi-power"}
    assert {each.energy_mj for each in told.values()} == {None}
    assert told["gpu-b"].power_w == 300.0


def test_a_source_that_believes_any_counter_is_caught(
    boards: Boards, source: AmdSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin of the test above."""
    monkeypatch.setattr(amd, "MOST_RATIO", float("inf"))
    with pytest.raises(AssertionError):
        test_a_counter_in_another_unit_is_never_booked(boards, source, 16.0)


def test_partitions_of_a_board_are_read_once(boards: Boards, source: AmdSource) -> None:
    """Each tells the whole board's power: eight of them would be eight times too much."""
    boards.boards = [
        Board(f"0000:0c:00.{each}", f"gpu-{each}", pid=100 + each % 3) for each in range(8)
    ]
    boards.tell()
    wait_for(lambda: by_uuid(source), "the board")
    (told,) = by_uuid(source).values()
    assert (told.gpu_uuid, told.power_w, told.shared) == ("gpu-0", 500.0, "partitions")
    assert source.compute_pids() == {"gpu-0": (100, 101, 102)}


@pytest.mark.parametrize(
    ("change", "power_w"),
    [
        ({"watts": 0xFFFF}, None),
        ({"watts": 0xFFFFFFFF}, None),
        ({"watts": 0}, None),
        ({"watts": 60_000}, None),
        ({"cap_uw": 750}, 500.0),
        ({"cap_uw": 0xFFFF_FFFF_FFFF_FFFF}, 500.0),
        ({"percent": 0xFFFF, "mhz": 0xFFFFFFFF}, 500.0),
        ({"tick_uj": "nan"}, 500.0),
        ({"tick_uj": 0.0}, 500.0),
        ({"ticks": 0}, 500.0),
    ],
)
def test_what_a_board_does_not_have_is_unknown_and_never_zero(
    boards: Boards, source: AmdSource, change: dict[str, float], power_w: float | None
) -> None:
    """Its other values go on."""
    for name, value in change.items():
        setattr(boards.boards[0], name, value)
    boards.tell()
    wait_for(lambda: len(by_uuid(source)) == 2, "both boards")
    told = by_uuid(source)["gpu-a"]
    assert told.power_w == power_w
    assert told.energy_mj is None
    assert told.power_limit_w == (None if "cap_uw" in change else 750.0)
    assert told.clock_mhz == (None if "mhz" in change else 2100)
    assert told.utilization == (None if "percent" in change else 0.97)


def test_a_lost_board_costs_itself_alone_and_is_found_again(
    boards: Boards, source: AmdSource
) -> None:
    """Handles of before the library was initialised again are not used."""
    wait_for(lambda: len(by_uuid(source)) == 2, "both boards")
    boards.boards[0].status = 31
    boards.tell()
    wait_for(lambda: set(by_uuid(source)) == {"gpu-b"}, "one board")
    assert "could not read power" in source.troubles["gpu-a"]
    boards.boards[0].status = 0
    boards.tell()
    wait_for(lambda: len(by_uuid(source)) == 2, "both boards again")


def test_a_driver_that_is_not_there_yet_is_waited_for(boards: Boards, source: AmdSource) -> None:
    """One sentence meanwhile."""
    boards.status = 34
    boards.tell()
    wait_for(lambda: "could not initialise" in (said(source) or ""), "the reason")
    boards.status = 0
    boards.tell()
    wait_for(lambda: len(by_uuid(source)) == 2, "both boards")


def said(source: AmdSource) -> str:
    """Read once; give why it failed."""
    try:
        source.read()
    except SourceUnavailable as error:
        return str(error)
    return ""


def test_a_call_that_hangs_costs_the_deadline_and_no_more(boards: Boards, package: Path) -> None:
    """The reading fails in time, and the board answers again afterwards."""
    assert package.is_dir()
    source = AmdSource(deadline_s=0.3)
    wait_for(lambda: len(by_uuid(source)) == 2, "both boards")
    boards.hangs_s = 2
    boards.tell()
    wait_for(lambda: "did not answer within" in said(source), "the deadline")
    boards.hangs_s = 0
    boards.tell()
    wait_for(lambda: len(by_uuid(source)) == 2, "both boards again")
    source.close()


def test_a_trial_begins_anew_where_counter_or_readings_stop(boards: Boards, package: Path) -> None:
    """A counter that was reset, or not read for long, is compared from there on."""
    assert package.is_dir()
    device = AmdDevice(
        smi=None, call=print, handles=(), uuid="a", quality=Quality.MEASURED, trial_s=10.0
    )
    for at_s in range(9):
        device._judge(float(at_s), 100.0, 1_000_000 + 100_000 * at_s)
    device._judge(9.0, 100.0, 0)
    for at_s in range(10, 19):
        device._judge(float(at_s), 100.0, 100_000 * (at_s - 9))
        assert device.counts is None
    device._judge(19.0, 100.0, 1_000_000)
    assert device.counts is True


def test_without_the_library_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    """And nothing is printed."""
    code = (
        "from wattmesh.telemetry.sources.amd import AmdSource\n"
        "import time\n"
        "source = AmdSource(deadline_s=60)\n"
        "try:\n    source.read()\nexcept Exception as error:\n"
        "    import sys; sys.stderr.write(str(error))\n"
    )
    environment = {**os.environ, "ROCM_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "AMD SMI cannot be loaded" in done.stderr
    assert "ROCM_PATH" in done.stderr
    assert done.stdout == ""


def test_the_settings_open_it(boards: Boards) -> None:
    """As `power.source = "amd"`, on a node and in a daemon."""
    settings = parse('[power]\nsource = "amd"\n', where=boards.file)
    source = power_source(settings)
    assert isinstance(source, AmdSource)
    wait_for(lambda: len(by_uuid(source)) == 2, "both boards")
    source.close()
