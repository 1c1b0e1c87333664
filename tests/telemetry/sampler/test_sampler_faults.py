"""Random faults on a scripted machine: whatever happens, the books agree with the truth."""

from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.telemetry.sampler.test_sampler import GRID, RUN
from tests.telemetry.world import AddingBook, MemoryBook, TornBook, World
from wattmesh.errors import JournalUnavailable
from wattmesh.telemetry.energy.attribution import EnergyClaim
from wattmesh.telemetry.energy.sampler import Sampler

OTHER = EnergyClaim(run="run-2", incarnation="inc-2", line="run")

ACTS = st.one_of(
    st.tuples(st.just("pass"), st.integers(1, 4000), st.integers(0, 700)),
    st.tuples(st.just("hold"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("down"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("lose"), st.just(0), st.just(0)),
    st.tuples(st.just("wall"), st.integers(-7200, 7200), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, 3000), st.just(0)),
    st.tuples(st.just("mute"), st.integers(0, 1), st.just(0)),
)
Act = tuple[str, int, int]


class Story:
    """Carries out acts on a world, one sampler after another, and settles at the end."""

    def __init__(self, book: MemoryBook) -> None:
        """Begin with a booked first reading: from here on the truth is known to the book."""
        self.world, self.book = World("G0", "G1"), book
        self.claims: dict[str, EnergyClaim] = {}
        self.sampler = self._sampler()
        self.step(1)
        self.sampler.flush()
        self.start_mj = self.truth_mj

    @property
    def truth_mj(self) -> int:
        """What all devices have drawn."""
        return sum(gpu.counter_mj for gpu in self.world.gpus.values())

    def _sampler(self) -> Sampler:
        return Sampler(self.world, self.book, GRID, boot_id="boot", hold_s=2.5)

    def step(self, seconds: float) -> None:
        """Let time pass and sample."""
        self.world.pass_time(seconds)
        self.sampler.step(self.world.now, self.world.monotonic_s, self.claims)

    def flush(self) -> None:
        """Book, if it works."""
        with suppress(JournalUnavailable):
            self.sampler.flush()

    def act(self, act: Act) -> None:
        """Carry out one act."""
        name, number, watts = act
        if name == "pass":
            self.world.gpu.power_mw = 1000 * watts
            self.step(number / 7)
        elif name == "hold":
            self.claims = {"G0": (RUN, OTHER)[number - 1]} if number else {}
        elif name == "flush":
            self.flush()
        elif name == "wall":
            self.world.now += timedelta(seconds=number)
        elif name == "kill":
            self.world.pass_time(number)
            self.sampler = self._sampler()
            self.step(0)
        elif name == "mute":
            self.world.gpu.answers = not number
        else:
            self.book.down = bool(number) if name == "down" else self.book.down
            self.book.loses_answer = name == "lose" or self.book.loses_answer

    def settle(self) -> int:
        """End every fault and book everything; give the true millijoules since the start."""
        self.book.down = self.book.loses_answer = False
        self.world.gpu.answers = True
        self.flush()
        self.step(1)
        self.step(1)
        self.sampler.flush()
        return self.truth_mj - self.start_mj


@settings(max_examples=150)
@given(st.lists(ACTS, max_size=40))
@example([("mute", 1, 0), ("pass", 4000, 300), ("flush", 0, 0), ("kill", 1, 0)])
@example([("pass", 400, 300), ("lose", 0, 0), ("flush", 0, 0), ("kill", 9, 0)])
def test_nothing_is_lost_and_nothing_counted_twice(acts: list[Act]) -> None:
    """Kills, lost commits, outages, clock steps, silent GPUs: the truth stays within the books.

    It is met to the millijoule unless a GPU was silent when the daemon was killed; then what was
    told as unobserved stays so.
    """
    story = Story(MemoryBook())
    for act in acts:
        story.act(act)
    true_mj = story.settle()
    book = story.book
    assert book.energy_mj <= true_mj <= book.energy_mj + book.upper_mj
    if not {"mute", "kill"} <= {act[0] for act in acts}:
        assert book.energy_mj == true_mj
        assert book.unobserved_ms == 0
    for row in book.rows.values():
        assert (row.energy_mj or 0) >= 0
        assert row.unobserved_ms >= 0
        assert row.upper_mj >= 0
        assert row.slot_start < row.slot_end


KILLED_IN_FLUSH: list[Act] = [
    ("pass", 400, 300),
    ("lose", 0, 0),
    ("flush", 0, 0),
    ("kill", 5, 0),
    ("flush", 0, 0),
    ("pass", 400, 300),
]


@pytest.mark.parametrize("book", [AddingBook(), TornBook()])
def test_a_sabotaged_book_is_caught(book: MemoryBook) -> None:
    """Sabotaged: adding instead of replacing, or counters without their rows, does not add up."""
    story = Story(book)
    for act in KILLED_IN_FLUSH:
        story.act(act)
    assert story.settle() != book.energy_mj
    honest = Story(MemoryBook())
    for act in KILLED_IN_FLUSH:
        honest.act(act)
    assert honest.settle() == honest.book.energy_mj
