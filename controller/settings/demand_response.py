"""The keys of `[demand_response]`: caps that come by themselves in dirty or dear hours."""

from collections.abc import Iterator, Sequence
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import Field

from wattmesh.controller.settings.exogenous import ExogenousSection
from wattmesh.controller.settings.mistakes import Mistake, quoted
from wattmesh.controller.settings.section import Section
from wattmesh.policies.powercap.triggers import CapOrigin, DemandSource, Trigger

MOST_W = 1e12


class TriggerSection(Section):
    """What triggers a cap, and which."""

    worst_hours: int | None = Field(default=None, ge=1, le=23, examples=[3])
    """Hours of each day, in the site's time zone, that are capped: its worst. Set this or `above`;
    with both, hours must be among the worst and at or above."""
    above: float | None = Field(default=None, ge=-1e6, le=1e6, examples=[300.0])
    """Value of the signal, in its unit, at or above which hours are capped."""
    cap_w: float | None = Field(default=None, gt=0, le=MOST_W, examples=[150_000.0])
    """Cap in watts for all GPUs together. Set this or `cap_share`."""
    cap_share: float | None = Field(default=None, gt=0, le=1, examples=[0.7])
    """Cap as a share of what all GPUs may draw by their limits, as known when it is announced."""
    notice_s: float = Field(default=3600.0, ge=0, le=172_800)
    """Least seconds between the announcement of a cap and its start, and between a withdrawal and
    the start."""
    longest_hours: int = Field(default=4, ge=1, le=24)
    """Most hours of one cap."""
    pause_hours: int = Field(default=2, ge=0, le=24)
    """Least hours between the end of a cap and the start of the next of this trigger."""
    ahead_hours: int = Field(default=24, ge=1, le=72)
    """Hours ahead in which caps begin. What is announced stays, so far ahead is not better."""
    hysteresis: float = Field(default=0.1, ge=0, lt=1)
    """How far a cap that is announced may fall below what triggered it before it is taken back, as
    a share: of `above`, and of the day's range of values for `worst_hours`."""
    stale_after_s: float | None = Field(default=None, gt=0, le=1e9, examples=[7200.0])
    """Seconds without anything new of the signal after which it triggers nothing. Default: by the
    provider's own pace."""


class CarbonTriggerSection(TriggerSection):
    """Caps by the carbon intensity of the decision signal, in g/kWh."""

    allow: tuple[Literal["estimated", "profile", "simulated"], ...] = Field(
        default=("estimated",), strict=False
    )
    """What may be relied on beyond measured values and issued forecasts: values of the past hours
    of a day that the provider calls `estimated`, a `profile` of the signal's past where no forecast
    is issued, `simulated` recordings."""


class PriceTriggerSection(TriggerSection):
    """Caps by day-ahead prices, in EUR/MWh, which may be below 0."""

    series: str = Field(default="", examples=["entsoe:DE"], max_length=100)
    """Whose prices are followed, as provider:zone of a `[[carbon.exogenous]]` table that asks for
    `prices`. Default: the only such table."""


class DemandResponseSection(Section):
    """Power caps that are announced by themselves for the hours in which the grid is worst."""

    carbon: CarbonTriggerSection | None = None
    """Caps by the carbon intensity of the decision signal. Not set: none."""
    price: PriceTriggerSection | None = None
    """Caps by day-ahead prices. Not set: none."""

    def sources(
        self, timezone: str, exogenous: Sequence[ExogenousSection]
    ) -> tuple[DemandSource, ...]:
        """Give what the cycle follows, with days in `timezone`."""
        found = []
        if self.carbon is not None:
            allow = frozenset(str(each) for each in self.carbon.allow)
            found.append(_source(CapOrigin.CARBON, self.carbon, timezone, allow=allow))
        if self.price is not None:
            named = self.price.series or next(iter(_priced(exogenous)), "")
            found.append(_source(CapOrigin.PRICE, self.price, timezone, prices=named))
        return tuple(found)

    def mistakes(
        self, exogenous: Sequence[ExogenousSection], *, carbon: bool, most_days: float
    ) -> Iterator[Mistake]:
        """Name every mistake that no single key can show.

        Args:
            exogenous: the tables that may tell prices.
            carbon: whether there is a decision signal.
            most_days: how long nodes keep a cap; a longer one they do not obey at all.
        """
        for name, section in (("carbon", self.carbon), ("price", self.price)):
            if section is not None and section.longest_hours > most_days * 24.0:
                yield (
                    f"demand_response.{name}.longest_hours",
                    f"{section.longest_hours} h is more than actuator.obligation_days "
                    f"({most_days:g}), and no node would obey; shorten it",
                )
        if self.price is not None:
            yield from _mistakes("demand_response.price", self.price)
            yield from _price_mistakes(self.price.series, _priced(exogenous))
        if self.carbon is not None:
            yield from _mistakes("demand_response.carbon", self.carbon)
            if not carbon:
                yield "demand_response.carbon", "needs a grid signal; add [carbon.accounting]"
            if self.carbon.above is not None and self.carbon.above < 0:
                above = quoted(self.carbon.above)
                yield "demand_response.carbon.above", f"{above} must be at least 0 g/kWh"


def _priced(exogenous: Sequence[ExogenousSection]) -> tuple[str, ...]:
    """Name the series that have prices."""
    return tuple(f"{each.provider}:{each.zone}" for each in exogenous if each.prices)


def _price_mistakes(series: str, known: Sequence[str]) -> Iterator[Mistake]:
    key = "demand_response.price.series"
    if not known:
        yield key, "no table [[carbon.exogenous]] sets prices = true; set it where they come from"
    elif series and series not in known:
        yield key, f"{quoted(series)} tells no prices; allowed: {', '.join(known)}"
    elif not series and len(known) > 1:
        yield key, f"is missing: there are {', '.join(known)}; name one of them"


def _source(
    origin: CapOrigin,
    section: TriggerSection,
    timezone: str,
    *,
    allow: frozenset[str] = frozenset(),
    prices: str = "",
) -> DemandSource:
    return DemandSource(
        trigger=Trigger(
            origin=origin,
            above=section.above,
            worst_hours=section.worst_hours,
            cap_w=section.cap_w,
            cap_share=section.cap_share,
            notice_s=section.notice_s,
            longest_hours=section.longest_hours,
            pause_hours=section.pause_hours,
            ahead_hours=section.ahead_hours,
            hysteresis=section.hysteresis,
            timezone=ZoneInfo(timezone),
        ),
        allow=allow,
        stale_after_s=section.stale_after_s,
        prices=prices,
    )


def _mistakes(key: str, section: TriggerSection) -> Iterator[Mistake]:
    if section.above is None and section.worst_hours is None:
        yield key, "names no hours; set worst_hours, above, or both"
    if (section.cap_w is None) == (section.cap_share is None):
        yield key, "needs exactly one of cap_w and cap_share"
    if section.notice_s >= section.ahead_hours * 3600.0:
        yield (
            f"{key}.notice_s",
            f"{section.notice_s:g} must be below ahead_hours ({section.ahead_hours} h), or no hour "
            "is ever capped",
        )
