"""The sampler on a scripted machine: what is booked, for whom, and what becomes of outages."""

import time
from datetime import timedelta

import pytest

from tests.telemetry.world import T0, MemoryBook, World
from wattmesh.errors import JournalUnavailable
from wattmesh.telemetry.energy.attribution import DISPUTED, EnergyClaim, Holder, attribute
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.sampler import CLOCK_STEP_S, Sample, Sampler

GRID = SlotGrid(origin=T0, interval_s=1800.0)
RUN = EnergyClaim(run="run-1", incarnation="inc-1", line="run")


class Bench:
    """A world, a book, and one sampler after another between them."""

    def __init__(self, world: World | None = None, grid: SlotGrid = GRID) -> None:
        """Begin with a first step; `claims` is who holds what."""
        self.world = world or World()
        self.book = MemoryBook()
        self.grid = grid
        self.claims: dict[str, EnergyClaim] = {}
        self.boot = "boot-1"
        self.sampler = self.start()

    def start(self) -> Sampler:
        """Start a sampler (again): the one before is dead as after kill -9."""
        self.sampler = Sampler(
            self.world, self.book, self.grid, boot_id=self.boot, hold_s=2.5, deadline_s=0.2
        )
        return self.sampler

    def step(self, seconds: float = 1.0) -> Sample:
        """Let time pass, then sample."""
        self.world.pass_time(seconds)
        return self.sampler.step(self.world.now, self.world.monotonic_s, self.claims)

    def steps(self, count: int, seconds: float = 1.0) -> None:
        """Sample some times."""
        for _ in range(count):
            self.step(seconds)


def test_energy_is_split_at_slot_borders_to_the_millijoule() -> None:
    """A step over a border books each slot its share; the sum is what the counter moved."""
    bench = Bench()
    bench.step(1799.5)
    start_mj = bench.world.gpu.counter_mj
    bench.world.gpu.power_mw = 333_333
    bench.step(1.0)
    bench.sampler.flush()
    rows = sorted(bench.book.rows.values(), key=lambda each: each.slot_start)
    assert [row.slot_start for row in rows] == [T0, T0 + timedelta(seconds=1800)]
    assert [row.slot_end for row in rows] == [T0 + timedelta(seconds=s) for s in (1800, 3600)]
    assert sum(row.energy_mj or 0 for row in rows) == bench.world.gpu.counter_mj - start_mj
    assert [row.energy_mj for row in rows] == [166_666, 166_667]


def test_what_was_read_at_once_of_several_slots_tells_of_none_of_them() -> None:
    """Nobody looked for an hour: its joules are right, and how they lie in it is a guess."""
    bench = Bench()
    bench.step(0.0)
    bench.steps(60, 20.0)
    bench.sampler.flush()
    bench.start()
    bench.step(3600)
    bench.steps(60, 20.0)
    bench.sampler.flush()
    rows = sorted(bench.book.rows.values(), key=lambda each: each.slot_start)
    assert [row.quality for row in rows] == [
        "measured",  # a third of it was not looked at
        "estimated+spread",
        "estimated+spread",
        "measured",
    ]
    assert bench.book.energy_mj == bench.world.gpu.counter_mj


def test_energy_goes_to_whoever_held_the_gpu_and_else_to_idle() -> None:
    """Idle, a run, then two runs at once: three lines, no joule in two of them."""
    bench = Bench()
    bench.steps(11)
    bench.claims = {"G0": RUN}
    bench.steps(10)
    other = Holder(run="run-2", incarnation="inc-9", gpus=("G0",))
    bench.claims = dict(attribute([Holder(run="run-1", incarnation="i", gpus=("G0",)), other]))
    assert bench.claims == {"G0": DISPUTED}
    bench.step()  # until now it was the run's
    bench.steps(10, 180.5)  # into the next slot
    bench.sampler.flush()
    by_line: dict[str, int] = {}
    for row in bench.book.rows.values():
        by_line[row.line] = by_line.get(row.line, 0) + (row.energy_mj or 0)
    assert by_line["run"] == 1_000_000
    assert by_line["unattributed"] > 0
    assert bench.book.energy_mj == bench.world.gpu.counter_mj - 100_000


def test_booking_often_or_once_is_the_same() -> None:
    """Rows are absolute: flushing after every step books the joules of one flush at the end."""
    often, once = Bench(), Bench()
    for _ in range(50):
        often.step(70)
        often.sampler.flush()
        once.step(70)
    once.sampler.flush()
    assert often.book.rows == once.book.rows


def test_a_killed_daemon_books_the_outage_from_the_counter() -> None:
    """Killed, back after half an hour with energy unflushed: nothing is lost, all in its slots."""
    bench = Bench()
    bench.claims = {"G0": RUN}
    bench.step()
    start_mj = bench.world.gpu.counter_mj
    bench.steps(5)
    bench.sampler.flush()
    bench.steps(5)  # lost in memory
    bench.start()
    bench.step(1800)
    bench.sampler.flush()
    assert bench.book.by_run() == {"run-1": bench.world.gpu.counter_mj - start_mj}
    assert len(bench.book.rows) == 2
    assert bench.book.unobserved_ms == 0


def test_nothing_is_charged_before_it_is_known_who_holds_what() -> None:
    """A daemon that has just started waits for the claims, then charges the outage to the run."""
    bench = Bench()
    bench.claims = {"G0": RUN}
    bench.steps(3)
    bench.sampler.flush()
    bench.start()
    bench.world.pass_time(60)
    sample = bench.sampler.step(bench.world.now, bench.world.monotonic_s, None)
    assert len(sample.readings) == 1
    bench.sampler.flush()
    bench.step()
    bench.sampler.flush()
    assert set(bench.book.by_run()) == {"run-1"}
    assert bench.book.energy_mj == bench.world.gpu.counter_mj - 100_000


def test_a_reboot_makes_the_outage_unobserved() -> None:
    """After another boot the counter says nothing of before: None, with the time and the limit."""
    bench = Bench()
    bench.steps(3)
    bench.sampler.flush()
    booked_mj = bench.book.energy_mj
    bench.world.reboot(600)
    bench.boot = "boot-2"
    bench.start()
    bench.step(0)
    bench.sampler.flush()
    assert bench.book.energy_mj == booked_mj
    assert bench.book.unobserved_ms == 600_000
    assert bench.book.upper_mj == 420_000_000


def test_a_silent_gpu_is_unobserved_until_its_counter_tells() -> None:
    """While a GPU does not answer its time is shown as unobserved; its counter takes that back."""
    bench = Bench(World("G0", "G1"))
    bench.step()
    bench.world.gpu.answers = False
    bench.steps(30)
    sample = bench.step()
    bench.sampler.flush()
    assert sample.missing == ("G0",)
    assert bench.book.unobserved_ms == 31_000
    assert bench.book.upper_mj == 31 * 700_000
    bench.world.gpu.answers = True
    bench.step()
    bench.sampler.flush()
    assert (bench.book.unobserved_ms, bench.book.upper_mj) == (0, 0)
    assert bench.book.energy_mj == 2 * (bench.world.gpu.counter_mj - 100_000)


def test_a_silent_gpu_whose_counter_was_reset_stays_unobserved() -> None:
    """A GPU that comes back with its counter at zero leaves its silence unknown, not zero."""
    bench = Bench()
    bench.steps(5)
    bench.world.gpu.answers = False
    bench.steps(30)
    bench.world.gpu.reset()
    bench.world.gpu.answers = True
    bench.steps(5)
    bench.sampler.flush()
    assert bench.book.unobserved_ms == 30_000
    truth_mj = bench.world.gpu.truth_mj - 100_000
    assert bench.book.energy_mj <= truth_mj <= bench.book.energy_mj + bench.book.upper_mj


def test_a_whole_slot_without_observation_is_none() -> None:
    """A slot in which nobody measured has no energy: NULL, not 0."""
    bench = Bench()
    bench.world.gpu.counts = False
    bench.step()
    bench.world.gpu.answers = False
    bench.steps(10, 600)
    bench.sampler.flush()
    dark = [row for row in bench.book.rows.values() if row.energy_mj is None]
    assert len(dark) == len(bench.book.rows)
    assert bench.book.unobserved_ms == 6_000_000


def test_a_gpu_that_was_taken_out_is_let_go_after_a_day() -> None:
    """A removed GPU counts as unobserved for a day and then no more."""
    bench = Bench(World("G0", "G1"))
    bench.step()
    bench.world.gpu.answers = False
    bench.steps(200, 600)
    bench.sampler.flush()
    assert 24 * 3600 * 1000 <= bench.book.unobserved_ms <= 24 * 3600 * 1000 + 1_200_000
    assert bench.step().missing == ()


def test_a_gpu_without_a_counter_is_integrated_and_its_outage_unobserved() -> None:
    """No counter: power times time is booked; a restart leaves a gap that is told, not filled."""
    bench = Bench()
    bench.world.gpu.counts = False
    bench.steps(11)
    bench.sampler.flush()
    assert bench.book.energy_mj == 1_000_000
    assert {row.quality for row in bench.book.rows.values()} == {"estimated"}
    bench.start()
    bench.step(100)
    bench.sampler.flush()
    assert bench.book.energy_mj == 1_000_000
    assert bench.book.unobserved_ms == 100_000


def test_a_hung_driver_stalls_nothing() -> None:
    """A read that hangs costs its deadline once, then nothing; its counters book it afterwards."""
    bench = Bench()
    bench.step()
    bench.world.hangs.clear()
    began_s = time.monotonic()
    first, second = bench.step(), bench.step()
    assert time.monotonic() - began_s < 10.0
    assert "scripted has not answered for" in first.trouble
    assert second.trouble
    bench.world.hangs.set()
    deadline_s = time.monotonic() + 10
    while bench.step().trouble and time.monotonic() < deadline_s:
        pass
    bench.step()
    bench.sampler.flush()
    assert bench.book.energy_mj == bench.world.gpu.counter_mj - 100_000


def test_a_driver_that_is_gone_says_so() -> None:
    """A source that cannot be read is one sentence; its devices are missing and unobserved."""
    bench = Bench()
    bench.step()
    bench.world.driver_gone = True
    bench.steps(9)
    sample = bench.step()
    bench.sampler.flush()
    assert sample.trouble == "the scripted driver is gone; wait for it"
    assert sample.missing == ("G0",)
    assert bench.book.unobserved_ms == 10_000


@pytest.mark.parametrize("hours", [1, -1])
def test_a_stepped_wall_clock_moves_facts_and_no_joules(hours: int) -> None:
    """A wall clock stepped by an hour either way is told once; every joule is booked once."""
    bench = Bench()
    bench.steps(31, 60)
    bench.sampler.flush()
    bench.world.now += timedelta(hours=hours)
    told = [bench.step(60).clock_step_s for _ in range(30)]
    bench.sampler.flush()
    assert told == [hours * 3600.0] + [0.0] * 29
    assert bench.book.energy_mj == bench.world.gpu.counter_mj - 6_000_000
    assert bench.book.unobserved_ms == 0
    assert all(row.slot_start < row.slot_end for row in bench.book.rows.values())


@pytest.mark.parametrize(
    ("jump_s", "anew"), [(3600.0, False), (-3600.0, False), (0.4, False), (60.0, True)]
)
def test_a_stretch_is_no_longer_than_it_was_read(jump_s: float, *, anew: bool) -> None:
    """Whatever the wall clock does, many small steps and one while no sampler ran included."""
    bench = Bench()
    since_us = begun_us = 0
    for number in range(12):
        bench.steps(3)
        if jump_s < 1 or number == 6:
            bench.world.now += timedelta(seconds=jump_s)
            bench.sampler = bench.start() if anew else bench.sampler
        bench.step()
        bench.sampler.flush()
        counter = bench.book.counters["G0"]
        if counter.since_us != since_us:  # it began in this turn, which took four seconds
            since_us, begun_us = counter.since_us, bench.world.monotonic_us - 4_000_000
        length_s = counter.at.timestamp() - since_us / 1e6
        assert length_s <= (bench.world.monotonic_us - begun_us) / 1e6 + CLOCK_STEP_S
    assert bench.book.energy_mj == bench.world.gpu.counter_mj - 100_000


def test_while_the_book_is_down_energy_waits() -> None:
    """A book that is down for an hour loses nothing: every slot gets its energy afterwards."""
    bench = Bench()
    bench.step()
    bench.sampler.flush()
    bench.book.down = True
    for _ in range(70):
        bench.step(60)
        with pytest.raises(JournalUnavailable):
            bench.sampler.flush()
    bench.book.down = False
    bench.sampler.flush()
    assert bench.book.energy_mj == bench.world.gpu.counter_mj - 100_000
    assert len(bench.book.rows) == 3


def test_a_book_down_from_the_start_is_covered_by_the_counter() -> None:
    """A daemon that starts without its journal books from its first reading once it is back."""
    bench = Bench()
    bench.book.down = True
    bench.steps(10)
    with pytest.raises(JournalUnavailable):
        bench.sampler.flush()
    bench.book.down = False
    bench.sampler.flush()
    bench.step()
    bench.sampler.flush()
    assert bench.book.energy_mj == bench.world.gpu.counter_mj - 100_000


def test_a_commit_whose_answer_got_lost_counts_once() -> None:
    """A booking that was carried out and reported as failed is booked again without doubling."""
    bench = Bench()
    bench.step()
    bench.sampler.flush()
    for _ in range(3):
        bench.steps(3)
        bench.book.loses_answer = True
        with pytest.raises(JournalUnavailable):
            bench.sampler.flush()
    bench.steps(3)
    bench.sampler.flush()
    assert bench.book.energy_mj == bench.world.gpu.counter_mj - 100_000


def test_memory_is_bounded_and_the_counters_cover_what_is_let_go() -> None:
    """With the book gone for too many slots the rows are dropped, and the counter books them."""
    bench = Bench(grid=SlotGrid(origin=T0, interval_s=0.01))
    bench.step()
    bench.sampler.flush()
    start_mj = bench.world.gpu.counter_mj
    bench.book.down = True
    for _ in range(45):
        bench.step(10)
        with pytest.raises(JournalUnavailable):
            bench.sampler.flush()
    assert len(bench.sampler._pending) <= 21_000
    bench.book.down = False
    bench.sampler.flush()
    bench.step()
    bench.sampler.flush()
    assert bench.book.energy_mj == bench.world.gpu.counter_mj - start_mj


def test_two_incarnations_of_one_run_share_its_line() -> None:
    """A run that was launched again holds its GPU once: nothing becomes unattributed."""
    claims = attribute(
        [
            Holder(run="run-1", incarnation="old", gpus=("G0", "")),
            Holder(run="run-1", incarnation="new", gpus=("G0",)),
        ]
    )
    assert claims == {"G0": EnergyClaim(run="run-1", incarnation="new", line="run")}
