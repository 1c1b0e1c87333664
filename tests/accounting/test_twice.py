"""Two agents on one board: what it drew is booked once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.accounting.test_unclaimed import read_by
from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import Sites, moment
from wattmesh.controller.accounting.budget import budget
from wattmesh.controller.journal.nodes import node_store

BOTH_S, END_S = 460, 620
"""Two read until here, in the middle of a slot; one alone until there."""


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as opened:
        yield opened


def booked_over_true(sites: Sites, folder: Path, first: str) -> float:
    """Let boards be read by two until one of them ends; give what was booked over what was drawn.

    Args:
        sites: where.
        folder: of outboxes.
        first: the node whose agent reads them already, or ("") the daemon itself.
    """
    site = small.begun(sites, small.world(small.at("A", 0, 3_600)))
    site.begin(0, 0)
    read_by(site, folder, (0, BOTH_S), first)
    # Not heard at all where the daemon reads itself; refused where a node has the boards.
    read_by(site, folder, (5, BOTH_S - 10), "n2", heard=False)
    read_by(site, folder, (BOTH_S - 10, BOTH_S), "n2", heard=bool(first))
    if first:
        site.journal.nodes.retire(first, moment(BOTH_S))
    read_by(site, folder, (BOTH_S, END_S), "n2")
    site.report(END_S)
    site.price(END_S)
    (run,) = budget(site.journal, moment(END_S), "").runs
    assert run.unobserved_s < 4 * 10
    return (run.energy_j or 0.0) / (1_600.0 * END_S)


@pytest.mark.parametrize("first", ["n1", ""])
def test_what_two_read_is_booked_once(sites: Sites, tmp_path: Path, first: str) -> None:
    """A node that was renamed while its old agent still ran; an agent beside a daemon that reads.

    What the second kept back of their common time is delivered when the boards are its own.
    """
    assert booked_over_true(sites, tmp_path, first) == pytest.approx(1.0, abs=0.02)


def test_a_daemon_that_reads_again_after_agents_goes_on_from_no_old_counter(
    sites: Sites, tmp_path: Path
) -> None:
    """Else its counter would tell once more what an agent has booked meanwhile."""
    site = small.begun(sites, small.world(small.at("A", 0, 3_600)))
    site.begin(0, 0)
    for first, last, node in ((0, 60, ""), (60, 400, "n1"), (400, 460, "")):
        read_by(site, tmp_path, (first, last), node)
    site.report(460)
    site.price(460)
    (run,) = budget(site.journal, moment(460), "").runs
    assert run.energy_j == pytest.approx(1_600.0 * 460, rel=0.04)
    assert run.unobserved_s == pytest.approx(4 * 10, abs=4 * 5)


def test_what_two_book_is_caught(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: whatever a node delivers is added."""
    monkeypatch.setattr(node_store, "once", lambda _, __, ___, rows: rows)
    assert booked_over_true(sites, tmp_path, "n1") > 1.5
