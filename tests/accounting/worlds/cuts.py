"""Lives in which the settings cut slots otherwise from some moment on, as after a reload.

The daemon had no accounting signal, and gets one; or another one; or the site's zone changes. What
is booked of the slot under way stays in it; what follows is cut anew.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.accounting.worlds.site import T0, Site, moment
from wattmesh.telemetry.energy.ledger import SlotGrid

ZONES = ("UTC", "Atlantic/Azores", "America/St_Johns")
"""In two of them a day begins within the first hours of a world, in one not at a full hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How slots are cut.

    Attributes:
        first, then: before and after the look of this number (`at`); None: it stays.
        told: there is an accounting signal before that, so the books are kept.
    """

    first: SlotGrid
    then: SlotGrid | None = None
    at: int = 0
    told: bool = True

    @property
    def longest_s(self) -> int:
        """How long slots are at most."""
        return round(max(each.interval_s for each in (self.first, self.then or self.first)))


def cut(interval_s: float, zone: str = "UTC") -> SlotGrid:
    """Cut time every so many seconds."""
    return SlotGrid(origin=T0, interval_s=interval_s, timezone=zone)


def recut(site: Site, slots: SlotGrid, at: int) -> None:
    """Take other settings: writers hear of them at once, and the accounts begin anew."""
    site.journal.ledger_slots.on(slots, moment(at))
    site.cut = slots
    site.restart()


@st.composite
def any_cuts(draw: st.DrawFn, slot_s: int) -> Cuts:
    """Cut slots anyhow; half of the lives keep theirs."""
    first = cut(slot_s)
    if draw(st.booleans()):
        return Cuts(first=first)
    lengths = st.sampled_from((slot_s / 3, slot_s / 2, slot_s, 1.5 * slot_s, 2 * slot_s))
    kinds = st.builds(cut, lengths, st.sampled_from(ZONES))
    at, told = draw(st.integers(1, 8)), draw(st.booleans())
    return Cuts(first=draw(kinds), then=draw(kinds), at=at, told=told)


@st.composite
def even_cuts(draw: st.DrawFn, slot_s: int) -> Cuts:
    """Cut slots at every price, or at every second or third; half of the lives keep theirs."""
    if draw(st.booleans()):
        return Cuts(first=cut(slot_s))
    many = cut(slot_s * draw(st.sampled_from((2, 3))))
    first, then = draw(st.sampled_from(((many, cut(slot_s)), (cut(slot_s), many))))
    return Cuts(first=first, then=then, at=draw(st.integers(1, 8)), told=draw(st.booleans()))
