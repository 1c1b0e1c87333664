"""Joules that were read and that a run is not charged for: its saving never rests on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import Site, Sites, moment
from tests.accounting.worlds.world import Span, Stay, World
from wattmesh.controller.accounting.budget import budget
from wattmesh.controller.accounting.saving import UNKNOWN_GPUS, Saving
from wattmesh.controller.agent.outbox import AgentOutbox
from wattmesh.controller.journal.energy.coverage import extend
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.switch import SwitchState
from wattmesh.telemetry.energy.attribution import EnergyClaim
from wattmesh.telemetry.energy.delivery import Report
from wattmesh.telemetry.energy.ledger import CounterBaseline
from wattmesh.telemetry.energy.sampler import Book, Sampler
from wattmesh.telemetry.readings import PowerReading, Quality

S = small.SLOT_S
NOW = 40 * S
ROUNDING_UG = 200

Claims = Callable[[str, int], tuple[str, str, str] | None]
"""Whom a GPU's joules of a moment are booked to instead; None: to whom it belongs."""


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as found:
        yield found


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Claims], None]:
    """Let what attribution finds be something else."""
    real = Site._claim

    def set_claims(claims: Claims) -> None:
        monkeypatch.setattr(
            Site, "_claim", lambda site, gpu, at: claims(gpu, at) or real(site, gpu, at)
        )

    return set_claims


def while_at_b(line: str, gpus: tuple[str, ...]) -> Claims:
    """Name nobody for these GPUs as soon as the run was moved."""
    return lambda gpu, at: ("", "", line) if gpu in gpus and at >= 2_100 else None


@pytest.mark.parametrize(
    ("line", "gpus"),
    [("unattributed", small.GPUS), ("unattributed", ("g0",)), ("idle", ("g0", "g1"))],
)
def test_what_nobody_is_charged_for_on_its_gpus_may_be_the_run_s(
    sites: Sites, claimed: Callable[[Claims], None], line: str, gpus: tuple[str, ...]
) -> None:
    """Two runs on a board, a stranger's process, none to be seen: the truth is the lower end."""
    claimed(while_at_b(line, gpus))
    site = small.live(small.begun(sites, small.MOVED))
    site.price(NOW)
    found, true_ug = site.saving(NOW), site.world.saved_ug(site.world.tokens(site.world.end), NOW)
    assert true_ug is not None
    assert found.saved_ug is not None
    assert found.high_ug is not None
    assert found.saved_ug == pytest.approx(float(true_ug), abs=ROUNDING_UG)
    assert found.high_ug > found.saved_ug + 1_000_000
    assert found.upper_ug


def test_joules_of_nobody_that_are_forgotten_are_caught(
    sites: Sites, claimed: Callable[[Claims], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: only what was booked to the run counts."""
    monkeypatch.setattr("wattmesh.controller.accounting.saving.unclaimed_ug", lambda *_: {})
    claimed(while_at_b("unattributed", ("g0",)))
    site = small.live(small.begun(sites, small.MOVED))
    site.price(NOW)
    true_ug = site.world.saved_ug(site.world.tokens(site.world.end), NOW)
    assert true_ug is not None
    assert (site.saving(NOW).saved_ug or 0) > true_ug + 1_000_000


def test_an_untouched_run_saves_nothing_whoever_its_joules_are_booked_to(
    sites: Sites, claimed: Callable[[Claims], None]
) -> None:
    """A/A: what is not known of it is not known of its baseline."""
    claimed(while_at_b("unattributed", ("g0", "g3")))
    site = small.live(small.begun(sites, small.KEPT))
    site.price(NOW)
    assert (site.saving(NOW).saved_ug, site.saving(NOW).high_ug) == (0, 0)


def restarted(sites: Sites, idle_mw: int, waits: Span, *, told: bool) -> tuple[Saving, World]:
    """Restart a run for a switch; its GPUs wait for it in a span.

    `told`: the hook could say that it stops before it did.
    """
    begun, back = waits
    wait = Stay(start=begun, end=back, lives=False, power_mw=dict.fromkeys(small.GPUS, idle_mw))
    site = small.begun(
        sites,
        small.world(small.at("A", 0, begun), wait, small.at("B", back, 20 * S)),
    )
    small.live(site, begun - (begun % S or S))
    site.deliver(begun)
    site.report(begun)
    site.order(begun, "B")
    if told:
        site.step(begun, SwitchState.CHECKPOINTING)
    site.finish(begun, reason="restart")
    site.price(begun)
    site.deliver(back)
    site.begin(back, site.world.tokens(back), "B")
    for now in range((back // S + 1) * S, 20 * S + 1, S):
        small.tell(site, now)
        site.price(now)
    site.price(60 * S)
    return site.saving(60 * S), site.world


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        ((6 * S, 9 * S), True),
        ((6 * S, 9 * S), False),
        ((6 * S + 10, 6 * S + 290), True),
        ((6 * S + 10, 7 * S + 290), True),
        ((6 * S + 150, 8 * S + 150), False),
    ],
)
def test_what_its_gpus_draw_while_it_restarts_for_us_is_taken_off(
    sites: Sites, waits: Span, *, told: bool
) -> None:
    """Nobody computes on them, but nobody else has them: they wait for a switch of ours."""
    without, world = restarted(sites, 0, waits, told=told)
    with_idle, _ = restarted(sites, 90_000, waits, told=told)
    assert without.saved_ug is not None
    assert with_idle.saved_ug is not None
    waited_ug = sum(
        4 * 90_000 * (end - start) * world.price(start) / 3_600_000
        for start, end in world.cuts(*waits)
    )
    assert without.saved_ug - with_idle.saved_ug == pytest.approx(waited_ug, abs=ROUNDING_UG)
    assert with_idle.high_ug == without.high_ug


def test_what_nobody_is_charged_for_in_its_last_slot_may_be_the_run_s(
    sites: Sites, claimed: Callable[[Claims], None]
) -> None:
    """Its GPUs have joules of its own there too; the last seconds were somebody's."""
    end = 14 * S + 211
    world = small.world(*small.MOVED.stays[:-1], small.at("B", 1_500, end))
    claimed(lambda gpu, at: ("", "", "unattributed") if gpu == "g1" and at >= end - 200 else None)
    site = small.begun(sites, small.world(*world.stays[:-1], *halves(1_500, end - 200, end)))
    small.live(site)
    site.price(NOW)
    found, true_ug = site.saving(NOW), world.saved_ug(world.tokens(end), NOW)
    assert true_ug is not None
    assert found.saved_ug == pytest.approx(float(true_ug), abs=ROUNDING_UG)
    assert (found.high_ug or 0) > (found.saved_ug or 0)


def halves(start: int, middle: int, end: int) -> tuple[Stay, Stay]:
    """Stay at B, told apart at a moment."""
    return small.at("B", start, middle), small.at("B", middle, end)


@pytest.mark.parametrize(("slot", "held_s"), [(14, 11), (15, 0)])
def test_what_a_board_cannot_have_drawn_while_the_run_held_it_is_not_the_run_s(
    sites: Sites, slot: int, held_s: int
) -> None:
    """It ended 11 s into slot 14; in the rest of it, and in the next, its GPU idled."""
    saved_ug = []
    for idle_mj in (0, 100_000_000):
        site = small.begun(sites, small.MOVED)
        idle = small.row(slot, "g0", idle_mj, run="", incarnation="", line="idle")
        small.live(site)
        site.journal.ledger.book([idle], [])
        site.price(NOW)
        saved_ug.append(site.saving(NOW).saved_ug or 0)
    most_ug = 1_600_000 * held_s * site.world.price(slot * S) / 3_600_000
    assert saved_ug[0] - saved_ug[1] == pytest.approx(most_ug, abs=ROUNDING_UG)


def test_an_untouched_run_saves_nothing_whatever_its_gpus_draw_beside_its_launches(
    sites: Sites,
) -> None:
    """A/A: it crashes in the middle of a slot, and its GPUs idle until it is launched again."""
    crash = Stay(
        start=4 * S + 50,
        end=4 * S + 130,
        lives=False,
        ours=False,
        power_mw=dict.fromkeys(small.GPUS, 90_000),
    )
    world = small.world(small.at("A", 0, crash.start), crash, small.at("A", crash.end, 9 * S + 40))
    site = small.live(small.begun(sites, world), 4 * S)
    site.deliver(crash.start)
    site.report(crash.start)
    site.deliver(crash.end)
    site.begin(crash.end, world.tokens(crash.end))
    small.live(site)
    site.price(NOW)
    found = site.saving(NOW)
    assert (found.saved_ug, found.high_ug) == (0, 0)
    assert found.upper_ug == pytest.approx(
        4 * 90_000 * 80 * world.price(4 * S) / 3_600_000, abs=ROUNDING_UG
    )


def test_each_launch_must_know_its_gpus(sites: Sites, claimed: Callable[[Claims], None]) -> None:
    """That the second one does tells nothing of what the first one drew."""
    end = 8 * S
    claimed(lambda gpu, at: ("", "", "unattributed") if at < end + 60 else None)
    crash = Stay(start=end, end=end + 60, lives=False, ours=False)
    site = sites.site(
        small.world(
            small.at("A", 0, 4 * S),
            small.to("B", 4 * S, 4 * S + 20),
            small.at("B", 4 * S + 20, end),
            crash,
            small.at("A", end + 60, 14 * S),
        ),
        small.BRIGHT,
        small.TOLD,
        limits=small.LIMITS,
    )
    site.gpus = dict.fromkeys("AB", ("", "", "", ""))
    site.tell_prices(range(80), 0)
    site.deliver(0)
    site.begin(0, 0)
    for now in sorted({*range(S, end + 1, S), 4 * S + 20}):
        small.tell(site, now)
        site.price(now)
    site.gpus = dict.fromkeys("AB", small.GPUS)
    site.deliver(end + 60)
    site.begin(end + 60, site.world.tokens(end + 60))
    for now in range(9 * S, 14 * S + 1, S):
        small.tell(site, now)
        site.price(now)
    assert (site.saving(NOW).saved_ug, site.saving(NOW).why) == (None, UNKNOWN_GPUS)


@pytest.mark.parametrize(("until", "told"), [(10**9, True), (6 * S, False), (0, True)])
def test_processors_of_one_node_that_are_read_no_more_end_the_comparison(
    sites: Sites, until: int, *, told: bool
) -> None:
    """Of two nodes; those of the other one are read throughout."""
    site = small.begun(sites, small.MOVED)
    rows = [
        small.row(number, f"cpu:{host}:package-0", 400_000 * S, source="rapl")
        for number in range(15)
        for host in ("n1", "n2")
        if host == "n1" or number * S < until
    ]
    site.journal.ledger.book(rows, [])
    small.live(site)
    site.price(NOW)
    found = site.saving(NOW)
    assert (found.saved_ug is not None) is told
    assert told or "not read on the same nodes" in found.why


class Boards:
    """Four boards of 400 W each, whose counters run on whoever reads them."""

    name = "boards"
    at = 0

    def gpu_uuids(self) -> tuple[str, ...]:
        """Name them."""
        return small.GPUS

    def read(self) -> tuple[PowerReading, ...]:
        """Read them now."""
        return tuple(
            PowerReading(
                gpu_uuid=gpu,
                at=moment(self.at),
                monotonic_s=1000.0 + self.at,
                power_w=400.0,
                energy_mj=400_000 * self.at + 5,
                clock_mhz=None,
                power_limit_w=700.0,
                highest_limit_w=700.0,
                source="nvml",
                quality=Quality.MEASURED,
            )
            for gpu in small.GPUS
        )


WRONG_S = 30
"""A wall clock that is wrong at first is set right after so long."""


def read_by(
    site: Site,
    folder: Path,
    span: tuple[int, int],
    node: str,
    *,
    boot: str = "b",
    off: int = 0,
    cut_off: bool = False,
    heard: bool = True,
) -> None:
    """Read the boards in a span by a node's agent, or ("") by the daemon itself.

    Args:
        site: where.
        folder: of outboxes.
        span: when.
        node: whose agent.
        boot: names the machine's boot.
        off: by how many seconds its wall clock is wrong at first.
        cut_off: it delivers nothing before that is set right.
        heard: anything is taken from it.
    """
    boards, claims = (
        Boards(),
        {gpu: EnergyClaim(run="r", incarnation="r1", line="run") for gpu in small.GPUS},
    )
    journal = site.journal
    outbox = None
    book: Book = journal.ledger

    def wall() -> datetime:
        return moment(boards.at + (off if boards.at < span[0] + WRONG_S else 0))

    if node:
        outbox = AgentOutbox(
            folder / f"{node}.db",
            node=node,
            boot_id=boot,
            now=wall,
            clock_us=lambda: (1000 + boards.at) * 10**6,
        )
        outbox.adopt(journal.nodes.baselines(node))
        book = outbox
    sampler = Sampler(boards, book, site.grid, boot_id=boot)
    for at in range(*span, 5):
        boards.at = at
        sampler.step(wall(), 1000.0 + at, claims)
        sampler.flush()
        silent = not heard or (cut_off and at < span[0] + WRONG_S)
        while outbox and not silent and (batch := outbox.batch()):
            try:
                journal.nodes.deliver(node, Report(batch=batch), batch.rows, moment(at))
            except InputInvalid as error:
                outbox.refused(batch, str(error))
            else:
                outbox.acknowledged(batch)
    if outbox:
        outbox.close()


HOUR = 3_600


def gap(sites: Sites, folder: Path, readers: tuple[str, str]) -> Mapping[str, float]:
    """Let a run be read for ten minutes, by nobody for two hours, and for ten minutes again."""
    site = small.begun(sites, small.world(small.at("A", 0, 5 * HOUR)))
    site.begin(0, 0)
    read_by(site, folder, (0, 600), readers[0])
    if readers[0] and readers[1] != readers[0]:
        site.journal.nodes.retire(readers[0], moment(2 * HOUR))  # else its boards are not another's
    read_by(site, folder, (2 * HOUR + 600, 2 * HOUR + 1_200), readers[1])
    now = 2 * HOUR + 1_200
    site.report(now)
    site.price(now)
    (run,) = budget(site.journal, moment(now), "").runs
    return {
        "booked_j": run.energy_j or 0.0,
        "unobserved_s": run.unobserved_s,
        "true_j": 1_600.0 * now,
    }


@pytest.mark.parametrize("readers", [("n1", "n2"), ("", "n1")])
def test_a_counter_that_goes_on_from_no_other_leaves_the_time_between_dark(
    sites: Sites, tmp_path: Path, readers: tuple[str, str]
) -> None:
    """A node with a new name, agents after a lone daemon: what lies between was read by nobody."""
    found = gap(sites, tmp_path, readers)
    assert found["booked_j"] < 0.2 * found["true_j"]
    assert found["unobserved_s"] == pytest.approx(4 * 2 * HOUR, abs=60)


def test_a_counter_that_goes_on_covers_the_time_between(sites: Sites, tmp_path: Path) -> None:
    """The same agent, back after two hours: its counter told what was drawn."""
    found = gap(sites, tmp_path, ("n1", "n1"))
    assert found["booked_j"] == pytest.approx(found["true_j"], rel=1e-2)
    assert found["unobserved_s"] < 60


def test_one_span_for_whoever_reads_is_caught(
    sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: every counter is taken to go on from the one before."""

    def forgetful(
        connection: Connection, baselines: Iterable[CounterBaseline], **more: int
    ) -> None:
        extend(connection, [replace(each, since_us=0) for each in baselines], **more)

    monkeypatch.setattr("wattmesh.controller.journal.nodes.node_store.extend", forgetful)
    assert gap(sites, tmp_path, ("n1", "n2"))["unobserved_s"] < 60
