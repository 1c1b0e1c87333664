"""The energy counter held against power x time: what is compared, and what is said."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.world import T0
from wattmesh.telemetry.energy.crosscheck import CrossCheck, sentence
from wattmesh.telemetry.energy.residual import NodeBalance, Residual
from wattmesh.telemetry.readings import Component, PowerReading, Quality, component_of

HOLD_US = 2_500_000
READING = PowerReading(
    gpu_uuid="G0",
    at=T0,
    monotonic_s=100.0,
    power_w=350.0,
    energy_mj=0,
    clock_mhz=None,
    power_limit_w=700.0,
    source="nvml",
    quality=Quality.MEASURED,
)


def followed(check: CrossCheck, seconds: int, *, share: float = 1.0, start: int = 0) -> CrossCheck:
    """Read once a second a counter that moves by `share` of 350 W."""
    for second in range(start + 1, start + seconds + 1):
        reading = replace(
            READING, monotonic_s=100.0 + second, energy_mj=round(second * 350_000 * share)
        )
        check = check.followed(reading, hold_us=HOLD_US)
    return check


def test_a_counter_that_agrees_is_trusted() -> None:
    """An hour at 350 W: the ratio is 1 and there is nothing to say."""
    check = followed(CrossCheck.first(READING), 3_601)
    assert check.hour == pytest.approx(1.0)
    assert check.trusted
    assert sentence("G0", check) == ""


@pytest.mark.parametrize("share", [0.57, 1.2])
def test_a_counter_that_does_not_agree_is_told(share: float) -> None:
    """The known case, 0.57 of the power: named with its number and what to do."""
    check = followed(CrossCheck.first(READING), 3_601, share=share)
    assert check.ratio == pytest.approx(share)
    assert not check.trusted
    assert f"{share:.2f}" in sentence("G0", check)


def test_ten_minutes_tell_enough_but_five_do_not() -> None:
    """No ratio from noise, none withheld for an hour."""
    assert followed(CrossCheck.first(READING), 300).ratio is None
    assert followed(CrossCheck.first(READING), 600).ratio == pytest.approx(1.0)


def test_an_hour_is_judged_by_itself() -> None:
    """A counter that went wrong shows after an hour, not after a day of averaging."""
    check = followed(CrossCheck.first(READING), 3_600)
    late = replace(READING, monotonic_s=3_701.0, energy_mj=0)
    check = check.followed(late, hold_us=HOLD_US)
    for second in range(1, 3_602):
        reading = replace(late, monotonic_s=3_701.0 + second, energy_mj=second * 200_000)
        check = check.followed(reading, hold_us=HOLD_US)
    assert check.ratio == pytest.approx(200 / 350, rel=1e-3)


@given(
    at=st.integers(2, 598),
    fault=st.sampled_from(["reset", "jump", "gap", "silent", "source", "powerless"]),
)
def test_faults_of_the_counter_move_the_ratio_nowhere(at: int, fault: str) -> None:
    """A reset, an impossible jump, an outage, a silent sensor, another source: left out."""
    check = CrossCheck.first(READING)
    zero_mj, source, skipped = 0, "nvml", 0
    for second in range(1, 700):
        if second == at and fault == "reset":
            zero_mj = second * 350_000
        if second == at and fault == "jump":
            zero_mj = -(10**12)
        if second == at and fault == "source":
            zero_mj, source = -7_000, "dcgm"
        if second == at and fault == "gap":
            skipped = 20
        if skipped:
            skipped -= 1
            continue
        reading = replace(
            READING,
            monotonic_s=100.0 + second,
            energy_mj=None if second == at and fault == "silent" else second * 350_000 - zero_mj,
            power_w=None if second == at and fault == "powerless" else 350.0,
            source=source,
        )
        check = check.followed(reading, hold_us=HOLD_US)
    assert check.ratio == pytest.approx(1.0)


def test_an_older_reading_changes_nothing() -> None:
    """Answers that come twice are compared once."""
    check = followed(CrossCheck.first(READING), 5)
    assert check.followed(replace(READING, monotonic_s=103.0), hold_us=HOLD_US) == check


def device(name: str, power_w: float | None) -> PowerReading:
    """Read a device by its name."""
    return replace(READING, gpu_uuid=name, power_w=power_w, component=component_of(name))


def balance(*steps: tuple[float, Sequence[PowerReading]]) -> Residual:
    """Show a balance what was read at some seconds."""
    seen = NodeBalance()
    for at_s, readings in steps:
        seen.observe(replace(each, monotonic_s=at_s) for each in readings)
    return seen.residual


def steady(readings: Sequence[PowerReading], until_s: int = 121) -> Residual:
    """Read the same for two minutes."""
    return balance(*((float(at_s), readings) for at_s in range(until_s)))


def test_what_a_node_draws_beyond_its_parts() -> None:
    """The meter less GPUs, processors and memory; without a meter there is nothing to say."""
    parts = [device("G0", 500.0), device("cpu:n1:package-0", 200.0), device("dram:n1:0", 50.0)]
    assert steady(parts) == Residual()
    assert steady([*parts, device("node:n1:psu", 900.0)]) == Residual(power_w=150.0)


def test_a_node_meter_below_its_parts_is_told_and_never_zero() -> None:
    """5 % below is the noise of meters; more is said, and the residual is unknown."""
    parts = [device("G0", 500.0), device("cpu:n1:package-0", 500.0)]
    assert steady([*parts, device("node:n1:psu", 960.0)]).power_w == 0.0
    wrong = steady([*parts, device("node:n1:psu", 700.0)])
    assert wrong.power_w is None
    assert "700 W" in wrong.trouble
    assert "1000 W" in wrong.trouble
    unknown = steady([device("G0", None), device("node:n1:psu", 700.0)])
    assert unknown.power_w is None
    assert unknown.trouble


def lost(*, told: bool) -> Residual:
    """Show a balance two minutes in which one of two GPUs does not answer."""
    seen = NodeBalance()
    for at_s in range(121):
        held = [device("G0", 500.0), device("node:n1:psu", 1500.0)]
        seen.observe((replace(each, monotonic_s=at_s) for each in held), ["G1"] if told else [])
    return seen.residual


def test_what_a_silent_part_draws_is_not_the_rest_of_the_node() -> None:
    """Its watts are in the meter: the residual is unknown, also where no part answers."""
    assert lost(told=True).power_w is None
    assert lost(told=True).trouble
    assert steady([device("node:n1:psu", 700.0)]).power_w is None


def test_a_balance_that_does_not_hear_of_silent_parts_is_caught() -> None:
    """The sabotaged twin: the silent GPU's watts would be fans and losses."""
    assert lost(told=False).power_w == 1000.0


@given(at_s=st.integers(1, 240), late_s=st.integers(0, 60), rest_w=st.floats(50, 3000))
def test_a_meter_that_shows_a_step_of_the_load_late_makes_no_trouble(
    at_s: int, late_s: int, rest_w: float
) -> None:
    """Not for a moment; where nothing averages, the same meter is called wrong."""
    seen, alone = NodeBalance(), []
    for second in range(460):
        gpu_w = 70.0 if second < at_s else 300.0
        node_w = rest_w + (70.0 if second < at_s + late_s else 300.0)
        held = [device("G0", gpu_w), device("node:n1:psu", node_w)]
        seen.observe(replace(each, monotonic_s=float(second)) for each in held)
        assert not seen.residual.trouble or rest_w < 115
        alone.append(node_w < 0.95 * gpu_w)
    assert seen.residual.power_w == pytest.approx(rest_w)
    assert any(alone) == (late_s > 0 and rest_w + 70 < 0.95 * 300)


def test_a_meter_that_falls_silent_or_is_new_says_nothing() -> None:
    """Not before two minutes, and no longer than it is read."""
    held = [device("G0", 500.0), device("node:n1:psu", 100.0)]
    assert steady(held, until_s=119) == Residual()
    assert steady(held).trouble
    gone = [(float(at_s), held) for at_s in range(121)]
    assert balance(*gone, (121.0, held[:1])) == Residual()
    assert balance(*gone, (121.0, held[:1]), (122.0, held)) == Residual()


def test_names_tell_what_a_device_is() -> None:
    """GPUs by UUID, everything else by its kind."""
    names = {"GPU-8f2c": Component.GPU, "MIG-1": Component.GPU, "cpu:n:package-1": Component.CPU}
    assert {name: component_of(name) for name in names} == names
