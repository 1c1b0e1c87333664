"""The rules from two looks at a GPU to joules, one by one and against an oracle."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.world import T0
from wattmesh.telemetry.energy.ledger import NO_COUNTER, CounterBaseline
from wattmesh.telemetry.energy.meter import EnergyPiece, MeterState
from wattmesh.telemetry.readings import PowerReading, Quality

HOLD_US = 1_500_000


def reading(second: float, power_w: float | None, energy_mj: int | None) -> PowerReading:
    """Make a reading of a 700 W board."""
    return PowerReading(
        gpu_uuid="G0",
        at=T0,
        monotonic_s=100 + second,
        power_w=power_w,
        energy_mj=energy_mj,
        clock_mhz=None,
        power_limit_w=700.0,
        source="scripted",
        quality=Quality.MEASURED,
    )


def pieces(*readings: PowerReading) -> list[EnergyPiece]:
    """Run a meter over readings."""
    meter, made = MeterState.first(readings[0]), []
    for each in readings[1:]:
        advanced = meter.advanced(each, hold_us=HOLD_US)
        assert advanced is not None
        meter, piece = advanced
        made.append(piece)
    return made


def test_a_plausible_counter_is_the_energy() -> None:
    """Rule (a): what the counter moved is booked, and power is not looked at."""
    (piece,) = pieces(reading(0, 1.0, 5_000), reading(1, 9.0, 305_000))
    assert (piece.energy_mj, piece.quality) == (300_000, Quality.MEASURED)
    assert (piece.unobserved_ms, piece.upper_mj, piece.note) == (0, 0, "")


def test_a_counter_covers_an_outage() -> None:
    """Rule (a): two readings an hour apart book all the counter moved; nothing is unobserved."""
    (piece,) = pieces(reading(0, 300.0, 0), reading(3600, 300.0, 1_080_000_000))
    assert (piece.energy_mj, piece.unobserved_ms) == (1_080_000_000, 0)


def test_a_reset_counter_is_replaced_by_power() -> None:
    """Rule (b): a counter that went back books the mean power, then counts on from where it is."""
    first, second = pieces(
        reading(0, 200.0, 9_000_000), reading(1, 400.0, 10), reading(2, 400.0, 400_010)
    )
    assert (first.energy_mj, first.quality) == (300_000, Quality.ESTIMATED)
    assert first.note == "counter reset"
    assert (second.energy_mj, second.note) == (400_000, "")


def test_an_impossible_jump_is_not_believed() -> None:
    """A counter that moved a terajoule in a second is not believed; the next difference is."""
    first, second = pieces(
        reading(0, 300.0, 0), reading(1, 300.0, 10**15), reading(2, 300.0, 10**15 + 300_000)
    )
    assert (first.energy_mj, first.note) == (300_000, "implausible counter")
    assert second.energy_mj == 300_000


def test_without_a_counter_power_is_integrated_and_nothing_is_rounded_away() -> None:
    """Rule (c): a thousand intervals of a third of a millijoule book 333 mJ, not 0."""
    readings = [reading(i * 0.001, 1 / 3, None) for i in range(1001)]
    assert sum(piece.energy_mj or 0 for piece in pieces(*readings)) == 333


def test_a_long_gap_without_a_counter_is_unobserved() -> None:
    """Rule (d): ten minutes without a counter are None, with their time and the limit's energy."""
    (piece,) = pieces(reading(0, 300.0, None), reading(600, 300.0, None))
    assert piece.energy_mj is None
    assert (piece.unobserved_ms, piece.upper_mj) == (600_000, 420_000_000)


def test_a_counter_that_was_silent_counts_only_what_power_had_not_booked() -> None:
    """Power stands in while the counter is silent; its return books the difference, once."""
    booked = pieces(
        reading(0, 300.0, 0),
        reading(1, 300.0, None),
        reading(2, 300.0, None),
        reading(3, 300.0, 950_000),
    )
    assert [piece.energy_mj for piece in booked] == [300_000, 300_000, 350_000]


def test_power_that_guessed_too_much_waits_for_the_counter() -> None:
    """A guess above the counter books nothing until the counter has caught up."""
    booked = pieces(
        reading(0, 300.0, 0),
        reading(1, 500.0, None),
        reading(2, 100.0, 200_000),
        reading(3, 100.0, 300_000),
        reading(4, 100.0, 500_000),
    )
    assert [piece.energy_mj for piece in booked] == [400_000, 0, 0, 100_000]


def test_nonsense_is_unknown() -> None:
    """Power that is NaN or negative and a negative counter count as not read."""
    (piece,) = pieces(reading(0, float("nan"), -1), reading(1, -5.0, None))
    assert piece.energy_mj is None


def test_an_old_reading_is_passed_over() -> None:
    """A reading that is not newer than the one before books nothing."""
    meter = MeterState.first(reading(1, 300.0, 0))
    assert meter.advanced(reading(1, 300.0, 10), hold_us=HOLD_US) is None
    assert meter.advanced(reading(0, 300.0, 10), hold_us=HOLD_US) is None


def test_a_device_without_a_limit_gets_the_highest_estimate() -> None:
    """The upper estimate of an unknown board is that of the largest board, never zero."""
    unknown = replace(reading(0, None, None), power_limit_w=None)
    (piece,) = pieces(unknown, replace(unknown, monotonic_s=200.0))
    assert piece.upper_mj == 160_000_000


@pytest.mark.parametrize("energy_mj", [1_000, NO_COUNTER])
def test_another_boot_says_nothing_about_the_counter(energy_mj: int) -> None:
    """A counter of another boot is not compared with; the time between is unobserved."""
    baseline = CounterBaseline(
        gpu_uuid="G0", energy_mj=energy_mj, at=T0, monotonic_s=9e6, boot_id="old"
    )
    meter = MeterState.resumed(baseline, monotonic_us=40_000_000)
    advanced = meter.advanced(reading(0, 300.0, 2_000), hold_us=HOLD_US)
    assert advanced is not None
    assert (advanced[1].energy_mj, advanced[1].unobserved_ms) == (None, 60_000)


def test_simulated_readings_stay_simulated() -> None:
    """An estimate from simulated power says both."""
    first, second = reading(0, 300.0, None), reading(1, 300.0, None)
    (piece,) = pieces(
        replace(first, quality=Quality.SIMULATED), replace(second, quality=Quality.SIMULATED)
    )
    assert piece.quality == "estimated+simulated"


@dataclass(frozen=True)
class Look:
    """One second of a device: its power then, and what the driver tells at its end."""

    power_mw: int
    answers: bool = True
    counts: bool = True
    tells_power: bool = True
    resets: bool = False


LOOKS = st.lists(
    st.builds(
        Look,
        power_mw=st.integers(0, 700_000),
        answers=st.booleans(),
        counts=st.booleans(),
        tells_power=st.booleans(),
        resets=st.integers(0, 9).map(lambda each: each == 0),
    ),
    max_size=30,
)


def run(looks: list[Look]) -> tuple[int, list[tuple[EnergyPiece, Look]]]:
    """Run a meter over a device; give (true mJ, pieces with the look that ended each).

    Its power changes linearly from look to look, and is so integrated exactly by trapezoids. Its
    counter begins high, so that one reset is always seen.
    """
    counter_nj, true_nj = 10**15, 0
    at_s, power_mw = 100.0, 0
    meter = MeterState.first(reading(0, 0.0, 10**9))
    made = []
    for look in looks:
        at_s += 1
        drawn_nj = (power_mw + look.power_mw) * 500_000
        power_mw = look.power_mw
        true_nj += drawn_nj
        counter_nj = drawn_nj if look.resets else counter_nj + drawn_nj
        if not look.answers:
            continue
        shown = reading(
            at_s - 100,
            look.power_mw / 1000 if look.tells_power else None,
            counter_nj // 1_000_000 if look.counts else None,
        )
        advanced = meter.advanced(shown, hold_us=HOLD_US)
        assert advanced is not None
        meter, piece = advanced
        made.append((piece, look))
    return true_nj // 1_000_000, made


def bounded(true_mj: int, made: list[EnergyPiece], slack_mj: int) -> bool:
    """Say whether the truth lies in [booked, booked + upper]."""
    booked_mj = sum(piece.energy_mj or 0 for piece in made)
    upper_mj = sum(piece.upper_mj for piece in made)
    return booked_mj - slack_mj <= true_mj <= booked_mj + upper_mj + slack_mj


def test_unknown_counted_as_zero_is_caught() -> None:
    """Sabotaged: pieces that forget what nobody observed do not pass the check of the bounds."""
    looks = [Look(700_000, answers=False)] * 5 + [Look(700_000, counts=False)]
    true_mj, made = run(looks)
    honest = [piece for piece, _ in made]
    assert bounded(true_mj, honest, slack_mj=10)
    assert not bounded(true_mj, [replace(each, upper_mj=0) for each in honest], slack_mj=10)


@given(LOOKS)
def test_the_truth_lies_between_booked_and_upper(looks: list[Look]) -> None:
    """Whatever the driver hides, the truth up to the last answer is within the booked bounds."""
    last = next((i for i in reversed(range(len(looks))) if looks[i].answers), -1)
    # One power is held where the other is missing: an estimate that has no bound. Not here.
    seen = [replace(look, tells_power=True) for look in looks[: last + 1]]
    reset = next((i for i, look in enumerate(seen) if look.resets), -1)
    seen = [replace(look, resets=i == reset) for i, look in enumerate(seen)]
    true_mj, made = run(seen)
    assert bounded(true_mj, [piece for piece, _ in made], 2 * len(seen) + 2)
    assert all((piece.energy_mj or 0) >= 0 and piece.upper_mj >= 0 for piece, _ in made)


@given(LOOKS)
def test_pieces_tile_the_time(looks: list[Look]) -> None:
    """The lengths of all pieces sum to the time from the first reading to the last."""
    _, made = run(looks)
    answered = [i for i, look in enumerate(looks) if look.answers]
    whole_us = (answered[-1] + 1) * 1_000_000 if answered else 0
    assert sum(piece.length_us for piece, _ in made) == whole_us


@given(LOOKS)
def test_a_counter_that_never_resets_is_booked_to_the_millijoule(looks: list[Look]) -> None:
    """With a counter at both ends and none hidden for long, the sum is what the counter moved."""
    calm = [replace(look, answers=True, tells_power=True, resets=False) for look in looks] + [
        Look(power_mw=700_000) for _ in range(len(looks) + 2)
    ]
    true_mj, made = run(calm)
    assert sum(piece.energy_mj or 0 for piece, _ in made) == true_mj
