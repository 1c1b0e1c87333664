"""The meter where counters stand still, wrap, or belong to several sources; against an oracle.

The oracle: a device whose power never changes. Then every joule of observed time is known, guessed
or measured, and booked must equal power x observed time whatever happened: one joule lost or twice
counted shows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.sampler.test_sampler import GRID
from tests.telemetry.world import T0, MemoryBook
from wattmesh.errors import JournalUnavailable
from wattmesh.telemetry.energy.ledger import CounterBaseline
from wattmesh.telemetry.energy.meter import ADOPT_US, STILL_US, EnergyPiece, MeterState, micros
from wattmesh.telemetry.energy.sampler import Sampler
from wattmesh.telemetry.readings import PowerReading, Quality

HOLD_US = 5_000_000


def reading(
    second: float, power_w: float | None, energy_mj: int | None, source: str = "nvml"
) -> PowerReading:
    """Make a reading of a 700 W board."""
    return PowerReading(
        gpu_uuid="G0",
        at=T0,
        monotonic_s=100 + second,
        power_w=power_w,
        energy_mj=energy_mj,
        clock_mhz=None,
        power_limit_w=700.0,
        source=source,
        quality=Quality.MEASURED,
    )


def booked(*readings: PowerReading) -> tuple[MeterState, list[EnergyPiece]]:
    """Run a meter over readings."""
    meter, made = MeterState.first(readings[0]), []
    for each in readings[1:]:
        advanced = meter.advanced(each, hold_us=HOLD_US)
        assert advanced is not None
        meter, piece = advanced
        made.append(piece)
    return meter, made


def energies(*readings: PowerReading) -> list[int | None]:
    """Give what is booked for each reading after the first."""
    return [piece.energy_mj for piece in booked(*readings)[1]]


def test_a_counter_that_stands_still_while_power_flows_is_not_believed() -> None:
    """A frozen counter does not book 0 J: power stands in, and the counter settles it later."""
    _, pieces = booked(
        reading(0, 300.0, 1000),
        reading(1, 300.0, 1000),
        reading(2, 300.0, 1000),
        reading(3, 300.0, 951_000),
    )
    assert [piece.energy_mj for piece in pieces] == [300_000, 300_000, 350_000]
    assert [piece.note for piece in pieces] == ["stale counter", "stale counter", ""]
    assert [piece.quality for piece in pieces[1:]] == [Quality.ESTIMATED, Quality.MEASURED]


def test_a_counter_that_stands_still_while_no_power_is_known_is_unknown() -> None:
    """Nobody can tell that nothing was drawn; when it moves, it books all of it."""
    _, pieces = booked(reading(0, None, 1000), reading(1, None, 1000), reading(2, None, 301_000))
    assert [piece.energy_mj for piece in pieces] == [None, 300_000]
    assert (pieces[0].unobserved_ms, pieces[0].upper_mj) == (1000, 700_000)


def test_a_counter_may_stand_still_without_power_or_for_a_moment() -> None:
    """A device that draws nothing, or is looked at faster than its counter moves, is believed."""
    assert energies(reading(0, 0.0, 7), reading(1, 0.0, 7)) == [0]
    assert energies(reading(0, 300.0, 7), reading(0.2, 300.0, 7)) == [0]


def test_a_counter_that_stands_still_is_found_by_short_looks_too() -> None:
    """Five looks a second see a frozen counter after the first of them."""
    readings = [reading(each / 5, 300.0, 1000) for each in range(10)]
    assert energies(*readings, reading(2, 300.0, 601_000)) == [0] + [60_000] * 8 + [120_000]


def test_an_exporter_may_learn_more_seldom_than_it_is_scraped() -> None:
    """A counter that is told twice with the same bits is believed."""
    first = replace(reading(0, 300.0, 7, "prometheus-dcgm"), every_s=15.0)
    assert energies(first, replace(first, monotonic_s=first.monotonic_s + 15)) == [0]


def test_a_cap_that_came_in_between_makes_no_counter_implausible() -> None:
    """What was drawn under the limit before is believed under the lower limit after."""
    capped = replace(reading(600, 200.0, 600 * 650_000), power_limit_w=250.0)
    assert energies(reading(0, 650.0, 0), capped) == [600 * 650_000]


def test_after_an_outage_the_boards_highest_limit_is_what_may_have_held() -> None:
    """Whoever lowered the limit meanwhile does not make the outage's joules implausible."""
    baseline = CounterBaseline(gpu_uuid="G0", energy_mj=0, at=T0, monotonic_s=0.0, boot_id="b")
    capped = replace(reading(0, 200.0, 65_000_000), power_limit_w=250.0, highest_limit_w=700.0)
    advanced = MeterState.resumed(baseline).advanced(capped, hold_us=HOLD_US)
    assert advanced is not None
    assert advanced[1].energy_mj == 65_000_000
    uncounted = replace(capped, energy_mj=None)
    advanced = MeterState.resumed(baseline).advanced(uncounted, hold_us=HOLD_US)
    assert advanced is not None
    assert advanced[1].upper_mj == 70_000_000


def test_a_board_that_answers_no_more_is_bounded_by_what_it_may_draw_without_its_cap() -> None:
    """The cap may end while nobody looks."""
    capped = replace(reading(0, 200.0, 0), power_limit_w=250.0, highest_limit_w=700.0)
    _, dark = MeterState.first(capped).unseen(micros(capped.monotonic_s + 100))
    assert dark.upper_mj == 70_000_000


def test_a_stand_in_is_a_guess_that_the_counter_takes_back() -> None:
    """Another source's power is booked meanwhile; when the counter speaks, only the rest."""
    values = energies(
        reading(0, 300.0, 0),
        reading(1, 500.0, None, "static"),
        reading(2, 500.0, None, "static"),
        reading(3, 300.0, 1_000_000),
        reading(4, 300.0, 1_300_000),
    )
    assert values == [400_000, 500_000, 100_000, 300_000]


def test_a_stand_in_that_guessed_too_much_is_waited_for() -> None:
    """Nothing is booked until the counter has caught up: never a joule twice."""
    values = energies(
        reading(0, 100.0, 0),
        reading(1, 700.0, None, "static"),
        reading(2, 100.0, 200_000),
        reading(3, 100.0, 300_000),
        reading(4, 100.0, 500_000),
    )
    assert values == [400_000, 0, 0, 100_000]


def test_a_stand_in_with_a_counter_books_its_differences_and_not_its_height() -> None:
    """Its first look is by power, later ones by its own counter; the sum is the first counter's."""
    values = energies(
        reading(0, 300.0, 1_000),
        reading(1, 300.0, 10**12, "prometheus-dcgm"),
        reading(31, 300.0, 10**12 + 9_000_000, "prometheus-dcgm"),
        reading(32, 300.0, 9_601_000),
    )
    assert values == [300_000, 9_000_000, 300_000]


def test_a_stand_in_whose_counter_jumps_is_not_believed() -> None:
    """An impossible step of it falls back on its power."""
    values = energies(
        reading(0, 300.0, 0),
        reading(1, 300.0, 50, "other"),
        reading(2, 300.0, 10**15, "other"),
        reading(3, 300.0, 10, "other"),
    )
    assert values == [300_000, 300_000, 300_000]


def test_a_source_that_stood_in_for_long_is_gone_on_with() -> None:
    """After ten minutes its counter is the one that counts; the other starts again as a guess."""
    seconds = ADOPT_US // 1_000_000 + 5
    other = [reading(1 + each, 300.0, 10**9 + 300_000 * each, "other") for each in range(seconds)]
    meter, pieces = booked(reading(0, 300.0, 0), *other)
    assert meter.counter_source == "other"
    assert sum(piece.energy_mj or 0 for piece in pieces) == 300_000 * seconds
    advanced = meter.advanced(reading(seconds + 1, 300.0, 300_000 * (seconds + 1)), hold_us=HOLD_US)
    assert advanced is not None
    assert advanced[1].energy_mj == 300_000


def test_a_source_with_a_counter_is_taken_at_once_where_there_was_none() -> None:
    """Nothing is given up for it."""
    meter, pieces = booked(
        reading(0, 300.0, None, "static"),
        reading(1, 300.0, 5_000),
        reading(2, 300.0, 305_000),
    )
    assert meter.counter_source == "nvml"
    assert [piece.energy_mj for piece in pieces] == [300_000, 300_000]
    assert pieces[1].quality is Quality.MEASURED


@pytest.mark.parametrize(("source", "energy_mj"), [("nvml", 6_000_000), ("other", None)])
def test_after_a_restart_only_the_same_source_covers_the_outage(
    source: str, energy_mj: int | None
) -> None:
    """A counter that was booked up to says whose it is; another one says nothing about it."""
    baseline = CounterBaseline(
        gpu_uuid="G0", energy_mj=1_000_000, at=T0, monotonic_s=80.0, boot_id="b", source="nvml"
    )
    advanced = MeterState.resumed(baseline).advanced(
        reading(0, 300.0, 7_000_000, source), hold_us=HOLD_US
    )
    assert advanced is not None
    assert advanced[1].energy_mj == energy_mj
    assert advanced[0].counter_source == source


def test_a_source_that_seldom_learns_is_believed_for_its_own_periods() -> None:
    """A power scraped every 15 s holds for longer than one that is read every second."""
    first = replace(reading(0, 200.0, None, "prometheus-dcgm"), every_s=15.0)
    later = replace(first, monotonic_s=first.monotonic_s + 30, power_w=300.0)
    assert energies(first, later) == [7_500_000]
    assert energies(replace(first, every_s=0.0), replace(later, every_s=0.0)) == [None]


def test_power_between_two_silences_does_not_make_a_counter_implausible() -> None:
    """The dark time before a guess counts as time in which the counter may have moved."""
    meter, _ = booked(reading(0, 600.0, 0), reading(1, 600.0, 600_000))
    dark, _ = meter.unseen(101_000_000 + 3_600_000_000)
    guess = dark.advanced(reading(3602, 600.0, None), hold_us=HOLD_US)
    assert guess is not None
    spoke = guess[0].advanced(reading(3603, 600.0, 3603 * 600_000), hold_us=HOLD_US)
    assert spoke is not None
    assert spoke[1].note == ""
    assert spoke[1].energy_mj == 3602 * 600_000 - 600_000


def test_a_counter_that_moves_seldom_or_was_read_late_is_believed() -> None:
    """Its rise belongs to all the time since it moved, and to the time that reading it took."""
    seldom = [reading(i / 100, 700.0, 0) for i in range(24)]
    assert energies(*seldom, reading(0.24, 700.0, 168_000))[-1] == 168_000
    late = replace(reading(1.01, 700.0, 1_407_000), unsure_s=1.0)
    assert energies(reading(0, 700.0, 0), late) == [1_407_000]
    next_to_it = reading(1.02, 700.0, 707_000)
    first = replace(reading(1.01, 700.0, 0), unsure_s=1.0)
    assert energies(first, next_to_it) == [707_000]
    assert energies(reading(1.01, 700.0, 0), next_to_it) != [707_000]


POWER_MW = 250_000
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 35)),  # tenths of a second
        st.tuples(st.just("pass"), st.integers(10, 10)),
        st.tuples(st.just("gap"), st.integers(50, 9000)),
        st.tuples(st.just("lose"), st.integers(0, 1)),
        st.tuples(st.just("silence"), st.integers(0, 1)),
        st.tuples(st.just("blind"), st.integers(0, 1)),
        st.tuples(st.just("freeze"), st.integers(0, 1)),
        st.tuples(st.just("reset"), st.just(0)),
        st.tuples(st.just("glitch"), st.sampled_from([10**14, 10**15])),
        st.tuples(st.just("source"), st.integers(0, 2)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("down"), st.integers(0, 1)),
        st.tuples(st.just("kill"), st.integers(0, 300)),
        st.tuples(st.just("wall"), st.integers(-7200, 7200)),
    ),
    max_size=60,
)

FLAGS: dict[str, Callable[[int], tuple[str, object]]] = {
    "lose": lambda number: ("lost", bool(number)),
    "silence": lambda number: ("silent", bool(number)),
    "blind": lambda number: ("blind", bool(number)),
    "source": lambda number: ("source", number),
    "glitch": lambda number: ("glitch_mj", number),
}


@dataclass
class Device:
    """One device of constant power, with everything that can go wrong with what it tells.

    Its counter begins high, so that its one reset is always seen: a reset after which the counter
    has passed its old value unseen cannot be told from a counter that ran on.

    Attributes:
        plain: its newest reading was as it should be.
    """

    drawn_mj: int = 0
    zero_mj: int = -(10**12)
    frozen_mj: int | None = None
    glitch_mj: int = 0
    plain: bool = True
    lost: bool = False
    silent: bool = False
    blind: bool = False
    source: int = 0

    name = "scripted"

    def __post_init__(self) -> None:
        """Begin at some moment."""
        self.ms = 50_000_000

    def pass_time(self, tenths: int) -> None:
        """Draw."""
        self.ms += 100 * tenths
        self.drawn_mj += POWER_MW * tenths // 10

    def gpu_uuids(self) -> list[str]:
        """List it."""
        return ["G0"]

    def read(self) -> list[PowerReading]:
        """Tell what it tells."""
        if self.lost:
            return []
        own = self.drawn_mj - self.zero_mj if self.frozen_mj is None else self.frozen_mj
        counters = (own + self.glitch_mj, 10**11 + self.drawn_mj, None)
        self.plain, self.glitch_mj = self.glitch_mj == 0, 0
        power_w = None if self.blind else POWER_MW / 1000
        told = reading(0, power_w, counters[self.source], ("nvml", "other", "static")[self.source])
        if self.silent and self.source == 0:
            told = replace(told, energy_mj=None)
        return [replace(told, monotonic_s=self.ms / 1000)]


class Trial:
    """Carries out acts on a device, one sampler after another."""

    def __init__(self) -> None:
        """Begin with a booked first reading."""
        self.device, self.book, self.now = Device(), MemoryBook(), T0
        self.sampler = self._sampler()
        self.step(10)
        self.sampler.flush()
        self.start_mj, self.start_ms = self.device.drawn_mj, self.device.ms

    def _sampler(self) -> Sampler:
        return Sampler(self.device, self.book, GRID, boot_id="b", hold_s=2.5, deadline_s=30)

    def step(self, tenths: int) -> None:
        """Let time pass and sample."""
        self.device.pass_time(tenths)
        self.now += timedelta(milliseconds=100 * tenths)
        self.sampler.step(self.now, self.device.ms / 1000, {})

    def act(self, name: str, number: int) -> None:
        """Carry out one act.

        Only short looks see a counter that has stopped: one that stopped in a long gap has moved
        when it is seen again, and nobody can tell that it should have moved more. Nor does one
        stop in the moment in which its reset is seen: the ledger begins again from what it shows.
        """
        device = self.device
        if name not in {"pass", "freeze", "flush", "down", "wall"}:
            device.frozen_mj, device.plain = None, False
        if name in {"pass", "gap"}:
            self.step(number)
        elif name in FLAGS:
            setattr(device, *FLAGS[name](number))
        elif name == "freeze":
            stops = bool(number) and device.plain
            device.frozen_mj = device.drawn_mj - device.zero_mj if stops else None
        elif name == "reset" and device.zero_mj < 0:
            device.zero_mj, device.frozen_mj = device.drawn_mj, None
        elif name == "down":
            self.book.down = bool(number)
        elif name == "wall":
            self.now += timedelta(seconds=number)
        elif name == "kill":
            self.sampler.close()
            device.pass_time(number)
            self.now += timedelta(milliseconds=100 * number)
            self.sampler = self._sampler()
            self.step(0)
        elif name == "flush":
            self.flush()

    def flush(self) -> None:
        """Book, if it works."""
        try:
            self.sampler.flush()
        except JournalUnavailable:
            assert self.book.down

    def settle(self) -> None:
        """Let everything answer again, and book it."""
        self.book.down = False
        self.device.lost = self.device.silent = self.device.blind = False
        self.device.frozen_mj, self.device.source = None, 0
        self.sampler.flush()  # meters that could not be taken from the book are now
        for _ in range(5):
            self.step(10)
        self.sampler.flush()
        self.sampler.close()


def verdict(trial: Trial, rounding_mj: int, freezes: int = 0) -> str:
    """Hold the book against the truth; "" when it is right.

    A counter that stands still is believed for `STILL_US`; when it is reset or given up before it
    moves again, so much may be missing. Too much is never booked.
    """
    low_mj = rounding_mj + freezes * POWER_MW * STILL_US // 10**6
    drawn_mj = trial.device.drawn_mj - trial.start_mj
    observed_ms = trial.device.ms - trial.start_ms - trial.book.unobserved_ms
    due_mj = POWER_MW * observed_ms // 1000
    booked_mj = trial.book.energy_mj
    if not drawn_mj - trial.book.upper_mj - low_mj <= booked_mj <= drawn_mj + rounding_mj:
        return f"truth {drawn_mj} outside [{booked_mj}, + {trial.book.upper_mj}]"
    if booked_mj < due_mj - low_mj:
        return f"booked {booked_mj}, {due_mj} due for {observed_ms} ms"
    if min((row.energy_mj or 0 for row in trial.book.rows.values()), default=0) < 0:
        return "a row is negative"
    return ""


@given(ACTS)
def test_whatever_fails_every_observed_joule_is_booked_once(acts: list[tuple[str, int]]) -> None:
    """Never more than was drawn, never less than power x observed time, never negative."""
    trial = Trial()
    for name, number in acts:
        trial.act(name, number)
    trial.settle()
    assert not verdict(trial, rounding_mj=2 * len(acts) + 10, freezes=acts.count(("freeze", 1)))


def test_a_joule_that_is_counted_twice_is_caught() -> None:
    """Sabotaged: a book that holds a second too much does not pass the check."""
    trial = Trial()
    for _ in range(5):
        trial.step(10)
    trial.settle()
    assert not verdict(trial, rounding_mj=10)
    key, row = next(iter(trial.book.rows.items()))
    trial.book.rows[key] = replace(row, energy_mj=(row.energy_mj or 0) + POWER_MW)
    assert "outside" in verdict(trial, rounding_mj=10)
    trial.book.rows[key] = replace(row, energy_mj=(row.energy_mj or 0) - POWER_MW)
    assert verdict(trial, rounding_mj=10)
