"""What the metrics need of the journal, read at once into frozen facts.

Invariant: reading is the only I/O here; whoever holds a `Figures` can serve it for ever.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from wattmesh.controller.books.budget import run_budget
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs import RunRow
from wattmesh.controller.journal.sums import TotalRow
from wattmesh.controller.observe import SignalFacts, carbon_view, running_point
from wattmesh.controller.pulse import Pulse
from wattmesh.controller.signals.lines import skill_lines
from wattmesh.controller.views import SkillLine
from wattmesh.policies.decision import Rung
from wattmesh.policies.ladder import ACTS
from wattmesh.reconfig.switch import FINAL
from wattmesh.telemetry.readings import Quality

MOST_SWITCHES = 100_000
NEWEST = 200
UG_PER_G = 1e6
ENERGY = "energy"
"""What the journal calls the scenario of joules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFigure:
    """One grid signal.

    Attributes:
        ends_at: of the interval whose value this is.
        ahead: its hours ahead are forecast; the others have no rung, and no decision rests on them.
        rung: what decisions rest on. `issued_at`: of the forecast they rest on.
        state: how the newest poll ended. `skill`: how far its sources were off.
    """

    signal: str
    zone: str
    quality: str = ""
    g_per_kwh: float | None = None
    ends_at: datetime | None = None
    heard_at: datetime | None = None
    stale_after_s: float = 0.0
    ahead: bool = True
    rung: Rung = Rung.NONE
    issued_at: datetime | None = None
    state: str = ""
    skill: tuple[SkillLine, ...] = ()

    def usable(self, now: datetime) -> bool:
        """Whether decisions may rest on it at `now`."""
        if self.heard_at is None or self.ends_at is None or self.rung not in ACTS:
            return False
        return now < self.ends_at and (now - self.heard_at).total_seconds() <= self.stale_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyFigure:
    """Joules of one run and line, and the time of it that nobody measured.

    Not by source or quality: a slot may change either, and a counter must never fall.
    """

    run: str
    line: str
    energy_mj: int
    unobserved_ms: int = 0
    upper_mj: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GramsFigure:
    """Grams of one run, line, scenario and signal, as first reported and as they stand."""

    run: str
    line: str
    scenario: str
    signal: str
    first_ug: int
    newest_ug: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigure:
    """One run."""

    run: str
    name: str
    state: str
    point: str
    layout: str
    tokens: int
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything that is read from the journal for one scrape."""

    energy: tuple[EnergyFigure, ...] = ()
    grams: tuple[GramsFigure, ...] = ()
    runs: tuple[RunFigure, ...] = ()
    switches: Mapping[tuple[str, str], int] = field(default_factory=dict)
    saved_ug: Mapping[tuple[str, str], int] = field(default_factory=dict)
    signals: tuple[SignalFigure, ...] = ()


class FigureReader:
    """Reads the figures; counts each ended switch once instead of reading them all each time."""

    def __init__(self, journal: Journal, pulse: Pulse) -> None:
        """Begin without having read anything."""
        self._journal = journal
        self._pulse = pulse
        self._ended: dict[str, tuple[str, str]] = {}

    def read(self) -> Figures:
        """Read everything.

        Raises:
            JournalUnavailable: nothing could be read.
        """
        newest = self._journal.switches.history(limit=NEWEST if self._ended else MOST_SWITCHES)
        self._ended |= {
            row.plan: (row.run, row.state.value) for row in newest if row.state in FINAL
        }
        return _read(self._journal, self._pulse, Counter(self._ended.values()))


def _read(journal: Journal, pulse: Pulse, ended: Mapping[tuple[str, str], int]) -> Figures:
    """Read the sums; `ended`: how often switches of (run, outcome) ended."""
    now = pulse.clock.now()
    rows = journal.runs.all(now)
    names = {row.run: row.name for row in rows}
    totals = journal.ledger.totals()
    accounting, ahead = pulse.signals.accounting, pulse.signals.ahead
    facts = {str(each.signal): each for each in (*ahead, *pulse.signals.reports)}
    return Figures(
        energy=energy(totals, names),
        grams=grams(totals, names, _homes(pulse)),
        runs=tuple(map(_run, rows)),
        switches=_switches(ended, names),
        saved_ug=_saved(journal, rows, totals, str(accounting.signal) if accounting else ""),
        signals=tuple(
            _signal(journal, each, now, ahead=each.signal in {one.signal for one in ahead})
            for each in facts.values()
        ),
    )


def energy(totals: Iterable[TotalRow], names: Mapping[str, str]) -> tuple[EnergyFigure, ...]:
    """Add up joules under the runs' names: incarnations and namesakes are one series."""
    booked: Counter[tuple[str, str]] = Counter()
    unobserved: Counter[tuple[str, str]] = Counter()
    upper: Counter[tuple[str, str]] = Counter()
    for row in totals:
        if row.scenario == ENERGY:
            key = (names.get(row.run, row.run), row.line)
            booked[key] += row.energy_mj
            unobserved[key] += row.unobserved_ms
            upper[key] += row.upper_mj
    return tuple(
        EnergyFigure(
            run=key[0],
            line=key[1],
            energy_mj=energy_mj,
            unobserved_ms=unobserved[key],
            upper_mj=upper[key],
        )
        for key, energy_mj in sorted(booked.items())
    )


def _homes(pulse: Pulse) -> dict[str, str]:
    """Name the accounting signal that each fallback stands in for."""
    accounting = pulse.signals.accounting
    return {
        str(each.signal): str(accounting.signal) for each in pulse.signals.fallbacks if accounting
    }


def grams(
    totals: Iterable[TotalRow], names: Mapping[str, str], homes: Mapping[str, str]
) -> tuple[GramsFigure, ...]:
    """Add up grams by run, line, scenario and signal; provisional and measured slots together.

    What was first reported counts under the signal that a fallback stood in for (`homes`): rows go
    back to it, and a counter must never fall.
    """
    newest: Counter[tuple[str, str, str, str]] = Counter()
    first: Counter[tuple[str, str, str, str]] = Counter()
    for row in totals:
        if row.scenario != ENERGY:
            key = (names.get(row.run, row.run), row.line, row.scenario)
            home = homes.get(row.signal, row.signal)
            newest[*key, row.signal] += row.carbon_ug
            newest[*key, home] += 0
            first[*key, home] += row.first_carbon_ug
    return tuple(
        GramsFigure(
            run=key[0],
            line=key[1],
            scenario=key[2],
            signal=key[3],
            first_ug=first[key],
            newest_ug=newest[key],
        )
        for key in sorted(newest)
    )


def _run(row: RunRow) -> RunFigure:
    """Take what the metrics need of a run."""
    point = row.point
    return RunFigure(
        run=row.run,
        name=row.name,
        state=row.state,
        point=point.id if point else "",
        layout=str(row.layout),
        tokens=row.tokens,
        tokens_per_s=row.tokens_per_s,
    )


def _switches(
    ended: Mapping[tuple[str, str], int], names: Mapping[str, str]
) -> dict[tuple[str, str], int]:
    """Add up ended switches under the runs' names."""
    counts: Counter[tuple[str, str]] = Counter()
    for (run, outcome), count in ended.items():
        counts[names.get(run, run), outcome] += count
    return dict(sorted(counts.items()))


def _saved(
    journal: Journal, rows: Sequence[RunRow], totals: Sequence[TotalRow], signal: str
) -> dict[tuple[str, str], int]:
    """Give settled savings by (run, baseline); a finished run's are for `wattmesh budget`."""
    saved: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.state != "finished" and row.baseline:
            saved_g = run_budget(journal, row, totals, signal).saved_g
            if saved_g is not None:
                saved[row.name, row.baseline] = round(saved_g * UG_PER_G)
    return saved


def _signal(journal: Journal, facts: SignalFacts, now: datetime, *, ahead: bool) -> SignalFigure:
    """Read one signal's newest value, what decisions rest on, and how its polls went."""
    fetch = journal.carbon.last_fetch(facts.signal)
    view = carbon_view(journal, facts, now)
    point = running_point(journal, facts, now)
    quality = point.quality if point else Quality.FORECAST
    return SignalFigure(
        signal=str(facts.signal),
        zone=facts.signal.zone,
        quality=quality.value if view.slots else "",
        g_per_kwh=view.now_g_per_kwh,
        ends_at=view.slots[0].end if view.slots else None,
        heard_at=fetch.ok_at if fetch else None,
        stale_after_s=facts.stale_after_s,
        ahead=ahead,
        rung=view.rung,
        issued_at=view.issued_at,
        state=fetch.state if fetch else "",
        skill=skill_lines(journal.forecasts.skill(facts.signal)),
    )
