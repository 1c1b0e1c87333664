"""Which boards there are: lost ones, partitions, equal names, and answers of other versions."""

import math
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, cast

import pytest

from tests.telemetry.sources.amd.library import Board, Boards
from tests.telemetry.sources.amd.test_amd import FIRST, SECOND, boards, package
from wattmesh.telemetry.readings import Quality
from wattmesh.telemetry.sources import amd
from wattmesh.telemetry.sources.amd import AmdDevice, AmdFailed

__all__ = ["boards", "package"]


@pytest.fixture
def library(boards: Boards) -> Iterator[amd._Library]:
    """AMD SMI, open."""
    assert boards.file.exists()
    made = amd._Library(1.0)
    yield made
    made.close()


def test_a_lost_board_reads_through_no_handle_of_before(
    boards: Boards, library: amd._Library
) -> None:
    """A handle is an address in memory: by now it may be the board beside it, booked twice."""
    before = dict(library.devices())
    boards.boards[0].status = 31
    boards.tell()
    library.reopen()
    assert set(library.devices()) == {"gpu-b"}
    for ask in (before["gpu-a"].read, before["gpu-a"].pids):
        with pytest.raises(AmdFailed, match="does not list it"):
            ask()
    boards.boards[0].status = 0
    boards.tell()
    library.reopen()
    assert set(library.devices()) == {"gpu-a", "gpu-b"}
    assert before["gpu-a"].read().power_w == 500.0


def test_a_library_that_keeps_handles_is_caught(
    monkeypatch: pytest.MonkeyPatch, boards: Boards, library: amd._Library
) -> None:
    """The sabotaged twin of the test above."""

    def keeping(self: amd._Library) -> None:
        self.close()
        self._call("initialise", "amdsmi_init")

    monkeypatch.setattr(amd._Library, "reopen", keeping)
    with pytest.raises(AssertionError):
        test_a_lost_board_reads_through_no_handle_of_before(boards, library)


def test_a_board_whose_first_partition_is_lost_gets_no_second_name(
    boards: Boards, library: amd._Library
) -> None:
    """It would be booked as another board, and missed under its own name."""
    boards.boards = [Board(f"0000:0c:00.{each}", f"gpu-{each}") for each in range(4)]
    boards.tell()
    assert set(library.devices()) == {"gpu-0"}
    boards.boards[0].status = 31
    boards.tell()
    library.reopen()
    assert not library.devices()
    boards.boards[0].status = 0
    boards.tell()
    library.reopen()
    assert set(library.devices()) == {"gpu-0"}


def test_a_library_that_forgets_where_a_board_is_is_caught(
    boards: Boards, library: amd._Library
) -> None:
    """The sabotaged twin of the test above."""

    class Forgets(dict[str, Any]):
        def get(self, *_: object) -> None:
            """Know nothing."""

    library._boards = Forgets()
    with pytest.raises(AssertionError):
        test_a_board_whose_first_partition_is_lost_gets_no_second_name(boards, library)


def test_boards_that_tell_one_uuid_are_two_boards(boards: Boards, library: amd._Library) -> None:
    """Without serial numbers all tell the same; each keeps its name while the other is lost."""
    boards.boards = [Board(FIRST, "gpu-x", watts=500), Board(SECOND, "gpu-x", watts=300)]
    boards.tell()
    second = "gpu-x-0000-22-00"
    assert {name: each.read().power_w for name, each in library.devices().items()} == {
        "gpu-x": 500.0,
        second: 300.0,
    }
    boards.boards[0].status = 31
    boards.tell()
    library.reopen()
    assert {name: each.read().power_w for name, each in library.devices().items()} == {
        second: 300.0
    }


@pytest.mark.parametrize("blank", [*amd.BLANKS, "N/A", None, math.nan, True])
def test_a_field_that_is_not_available_is_no_number(blank: object) -> None:
    """A counter of 2^64 - 1 ticks, between two true ones, would be a year of a city's energy."""
    assert amd._energy_mj({"energy_accumulator": blank, "counter_resolution": 15.3}) is None
    assert amd._energy_mj({"energy_accumulator": 1000, "counter_resolution": blank}) is None
    assert amd._field("clk")({"clk": blank}) is None


@pytest.mark.parametrize("told", [None, [], ["handle"], "N/A", 7, [{"pid": "N/A"}]])
def test_an_answer_of_another_version_is_a_trouble_of_its_board(told: object) -> None:
    """Never an error that nobody catches, which would end the readings of all boards."""
    device = AmdDevice(
        smi=None,
        call=lambda *_: told,
        handles=(1,),
        uuid="a",
        quality=Quality.MEASURED,
        trial_s=1.0,
    )
    with pytest.raises(AmdFailed, match="it answered"):
        device.read()
    if told != []:
        with pytest.raises(AmdFailed, match="it answered"):
            device.pids()


def test_what_others_print_while_the_package_is_imported_is_printed() -> None:
    """`wattmesh doctor` prints while an import goes on that takes long."""
    out = StringIO()
    with redirect_stdout(cast("Any", amd._Quiet(out))):
        print("of the package")
        other = threading.Thread(target=print, args=("of doctor",))
        other.start()
        other.join()
        sys.stdout.flush()
    assert out.getvalue() == "of doctor\n"
