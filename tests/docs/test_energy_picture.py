"""The picture of the ledger's rules shows what its text says."""

from scripts import energy_picture
from scripts.energy_picture import LOST, LOST_AND_RESET, RESET, SECONDS, SILENT, bars, power_w


def kinds(start: int, end: int) -> set[str]:
    """Name the rules under which seconds of [start, end) were booked."""
    return {bar.kind for bar in bars() if bar.start_s >= start and bar.end_s <= end}


def test_each_rule_is_drawn_where_the_picture_names_it() -> None:
    """Counter, recovered, by power, unobserved; the ledger's own code decided."""
    assert kinds(0, LOST[0] - 1) == {"counted"}
    assert kinds(LOST[0] - 1, LOST[1]) == {"recovered"}
    assert kinds(RESET - 1, RESET) == {"integrated"}
    assert kinds(SILENT[0], SILENT[1] - 1) == {"integrated"}
    assert kinds(LOST_AND_RESET[0] - 1, LOST_AND_RESET[1] - 1) == {"unobserved"}


def test_areas_hold_what_was_drawn_and_leave_no_second_out() -> None:
    """Outside the dark time the areas are the line's joules; together they cover every second."""
    found = bars()
    assert [bar.end_s for bar in found[:-1]] == [bar.start_s for bar in found[1:]]
    assert (found[0].start_s, found[-1].end_s) == (0, SECONDS)
    booked_j = sum(
        bar.power_w * (bar.end_s - bar.start_s) for bar in found if bar.kind != "unobserved"
    )
    dark = [bar for bar in found if bar.kind == "unobserved"]
    seen = set(range(SECONDS)) - {int(bar.start_s) for bar in dark}
    drawn_j = sum(power_w(second) for second in seen)
    assert abs(booked_j - drawn_j) < 0.01 * drawn_j
    assert energy_picture.render() == energy_picture.render()
