"""What the report of a month says, as facts: `GET /v1/report`.

Whole millijoules and micrograms, so that lines add up exactly. Invariant: scenarios stand beside
each other and are never netted; two signals are never added: where there are several, `carbon_ug`
is None and `carbon` has each; each line names its signal (or label), and what has no price is in
`unpriced_mj`, never zero grams. `flags`: what joules and grams are beside measured.
"""

from dataclasses import dataclass
from datetime import datetime

from wattmesh.controller.views import Reopening

LOCATION, LIFECYCLE, MARGINAL, FURTHER = "location", "lifecycle", "marginal", "further"
MARKET, EMBODIED = "market", "embodied"
"""Scenarios: location-based in the accounting signal (Scope 2); further signals of the settings, by
what they are; contracts of the settings; and making the hardware."""

NOT_COVERED = "not covered"
"""Stands as the label of joules that no contract of the settings covers."""

BOUNDARY = (
    "E: the GPUs, and processors and memory where they are read{pue}; not network, storage or "
    "cooling beyond that. I: location-based {signal}. M: embodied carbon of the GPUs, by the hour "
    "they were held (`embodied_g_per_gpu_hour` of the catalogue). R: 10^9 tokens trained. "
    "Market-based factors are excluded (ISO/IEC 21031:2024)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCarbon:
    """Location-based grams in one signal.

    Attributes:
        carbon_ug: micrograms of the joules that were read. `upper_ug`: most micrograms of the
            unobserved time, beyond those.
        first_carbon_ug: as first reported; None where that is not kept.
        closed_carbon_ug: as the month was first closed; None before that, or where it is not kept.
    """

    signal: str
    carbon_ug: int
    upper_ug: int = 0
    first_carbon_ug: int | None = None
    closed_carbon_ug: int | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """The part of a total that a declared fallback stands in for; the total includes it.

    Attributes:
        signal: the fallback. `model`: what its values were multiplied by; "" when not known.
    """

    signal: str
    model: str
    energy_mj: int
    carbon_ug: int
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLine:
    """One run or line of the cluster, in one scenario and signal, by one source of intensities.

    Attributes:
        subject: name of the run, or the line (idle, unattributed, idle_after_release, profiling).
        kind: "run" or "line". `run`: id of the run; "" for a line.
        scenario: one of those that this module names. `signal`: the signal it is accounted in, or
            the label of a contract.
        stand_in: the declared fallback that gave the intensity; "" when the signal itself did.
        energy_mj: millijoules that it covers.
        carbon_ug: micrograms of those that have a price. `unpriced_mj`: those that have none.
    """

    subject: str
    kind: str
    run: str
    scenario: str
    signal: str
    energy_mj: int
    carbon_ug: int
    unpriced_mj: int = 0
    stand_in: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTotal:
    """All lines of one scenario and signal.

    Attributes:
        unpriced_h: hours that had joules and no price.
        stand_ins: the parts that declared fallbacks stand in for; the amounts include them.
    """

    scenario: str
    signal: str
    energy_mj: int
    carbon_ug: int
    unpriced_mj: int
    unpriced_h: float
    stand_ins: tuple[StandIn, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectReport:
    """One run or line of the cluster, location-based.

    Attributes:
        run: id of the run; "" for a line.
        facility_mj: millijoules multiplied by the PUE that its slots were priced with; None when
            none is set.
        carbon: its grams by signal. `carbon_ug`: micrograms; None when there are several signals.
        unobserved_ms: time that nobody measured. `upper_mj`: most millijoules of that time.
        gpu_hours: hours for which the run held GPUs, from its slots. `embodied_ug`: embodied carbon
            of these hours; None when its catalogue does not say.
        tokens: trained in the month; None when its position at the start or the end is not known.
        sci_g: grams per 10^9 tokens, embodied ones included; None when a part is not known.
        simulated: the parts of it that are simulated.
    """

    subject: str
    kind: str
    run: str
    energy_mj: int
    facility_mj: int | None
    carbon_ug: int | None
    unpriced_mj: int
    unobserved_ms: int
    upper_mj: int
    carbon: tuple[SignalCarbon, ...] = ()
    gpu_hours: float = 0.0
    embodied_ug: int | None = None
    tokens: int | None = None
    sci_g: float | None = None
    simulated: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFigure:
    """One day of the site.

    Attributes:
        carbon: its grams by signal. `carbon_ug`: micrograms; None when there are several signals.
        planned_ug: micrograms planned by the cluster's budget, in its signal; None without one.
    """

    start: datetime
    energy_mj: int
    carbon_ug: int | None
    planned_ug: int | None = None
    carbon: tuple[SignalCarbon, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthReport:
    """Everything of one month.

    Attributes:
        at: when this was computed. `running`: whether the month is not over.
        closed_at: when it was closed; None while it is not.
        boundary: "it" (the machines as measured) or "facility" (multiplied by the PUE). `pue`: None
            when it is not set.
        energy_mj: of the whole cluster, as measured. `facility_mj`: of the whole cluster within the
            boundary `facility`; None without a PUE.
        signal: the accounting signal of the settings.
        carbon: location-based grams by signal. `carbon_ug`: location-based micrograms; None when
            there are several signals. `first_carbon_ug`: as first reported. `closed_carbon_ug`: as
            first closed; None before that.
        totals: of each scenario and signal. `lines`: what they are made of.
        subjects: runs and lines; their joules and location-based grams add up to the cluster
            exactly.
        qualities: share of the location-based joules per quality, and of those without a price.
        sci_g: grams per 10^9 tokens of the cluster: grams of all its lines, idle ones too, over the
            tokens of all runs; None when there are several signals.
        limit_g: limit of the cluster's budget for this month, in `limit_signal`; None without one.
        detail_of: "slots", or "closing" when retention has summed up the slots: scenarios beyond
            the location-based one are then those of the day it was closed.
        reopened: who opened it again after it was closed, and what it had been closed with.
    """

    at: datetime
    month: str
    timezone: str
    start: datetime
    end: datetime
    running: bool
    closed_at: datetime | None
    boundary: str
    pue: float | None
    signal: str
    energy_mj: int
    facility_mj: int | None
    carbon_ug: int | None
    unpriced_mj: int
    first_carbon_ug: int | None
    closed_carbon_ug: int | None
    totals: tuple[ScenarioTotal, ...]
    lines: tuple[ReportLine, ...]
    subjects: tuple[SubjectReport, ...]
    qualities: dict[str, float]
    days: tuple[DayFigure, ...]
    sci_g: float | None
    sci_boundary: str
    simulated: tuple[str, ...] = ()
    detail_of: str = "slots"
    limit_g: float | None = None
    limit_signal: str = ""
    carbon: tuple[SignalCarbon, ...] = ()
    flags: tuple[str, ...] = ()
    reopened: tuple[Reopening, ...] = ()
