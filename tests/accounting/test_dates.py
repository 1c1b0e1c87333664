"""Machines whose date is wrong at first: time that only a wall clock passed was read by nobody."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.accounting.test_unclaimed import HOUR, WRONG_S, read_by
from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import Sites, moment
from wattmesh.controller.accounting.budget import budget
from wattmesh.telemetry.energy.sampler import Sampler

READ_S = 60


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as opened:
        yield opened


class Machine(NamedTuple):
    """A machine with a wrong date.

    Attributes:
        node: whose agent reads; "": the daemon itself.
        boots: before two dark hours and after; one letter: it did not read before.
        off: by how many seconds its date is wrong after them, at first.
        cut_off: it delivers nothing before that is set right.
    """

    node: str
    boots: str
    off: int
    cut_off: bool = False


def unread_s(sites: Sites, folder: Path, machine: Machine) -> float:
    """Let four boards be read by nobody for two hours; give how long each was unobserved."""
    site = small.begun(sites, small.world(small.at("A", 0, 5 * HOUR)))
    site.begin(0, 0)
    node, boots, off, cut_off = machine
    if len(boots) > 1:
        read_by(site, folder, (0, READ_S), node, boot=boots[0])
    now = 2 * HOUR + 2 * READ_S
    read_by(site, folder, (now - READ_S, now), node, boot=boots[-1], off=off, cut_off=cut_off)
    site.report(now)
    site.price(now)
    (run,) = budget(site.journal, moment(now), "").runs
    return run.unobserved_s / 4


@pytest.mark.parametrize(
    "machine",
    [
        Machine("n1", "b", -HOUR, cut_off=True),
        Machine("n1", "b", -(10**7)),
        Machine("n1", "b", HOUR),
        Machine("n1", "bc", -HOUR, cut_off=True),
        Machine("n1", "bc", -HOUR),
        Machine("n1", "bc", -3 * HOUR),
        Machine("n1", "bc", HOUR),
        Machine("", "bc", -HOUR),
        Machine("", "bc", -3 * HOUR),
    ],
)
def test_what_only_a_wall_clock_passed_was_not_read(
    sites: Sites, tmp_path: Path, machine: Machine
) -> None:
    """A machine comes up with a wrong date, and is told the right one as it reads.

    By a date that is ahead, it was away for longer than it truly was.
    """
    dark_s = 2 * HOUR + (READ_S if len(machine.boots) == 1 else 0)
    found_s = unread_s(sites, tmp_path, machine)
    assert dark_s - 5 <= found_s <= dark_s + WRONG_S + 10 + max(0, machine.off)


def test_one_stretch_whatever_the_date_is_caught(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: a stretch that began by a wrong date goes on when that is set right."""
    monkeypatch.setattr(Sampler, "_begin_anew", lambda *_: None)
    for boots in ("b", "bc"):
        (tmp_path / boots).mkdir()
        machine = Machine("n1", boots, -HOUR, cut_off=True)
        assert unread_s(sites, tmp_path / boots, machine) < 1.1 * HOUR
