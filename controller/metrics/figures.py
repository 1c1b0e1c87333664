"""What the metrics need of the journal, read at once into frozen facts.

Invariant: reading is the only I/O here; whoever holds a `Figures` can serve it for ever.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from wattmesh.controller.accounting.accounts import ACTUAL
from wattmesh.controller.accounting.budget import SavedLine, saved_lines
from wattmesh.controller.accounting.saving import Saving, run_saving
from wattmesh.controller.carbon_views import SkillLine
from wattmesh.controller.cycle.carbon_view import SignalFacts, carbon_view, running_point
from wattmesh.controller.journal.carbon.exogenous import EXOGENOUS
from wattmesh.controller.journal.energy.sums import TotalRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.signals.lines import intensity_flags, skill_lines
from wattmesh.policies.decision import Action, IntensitySlot, Rung
from wattmesh.policies.ladder import ACTS
from wattmesh.reconfig.switch import FINAL
from wattmesh.telemetry.readings import Quality, flags_of

MOST_SWITCHES = 100_000
NEWEST = 200
DECISIONS_LOOKED_AT = 50
"""The newest decisions of a run, among which the one that ordered its switch is looked for."""

LOOK_AGAIN_S = 600.0
"""The saving of a run that has finished is looked at again so seldom."""

ENERGY = "energy"
"""What the journal calls the scenario of joules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExogenousFigure:
    """One provider of forecasts of wind, sun, load or weather.

    Attributes:
        state: how the newest poll ended. `reaches_at`: end of the last hour that it tells, whose
            value is known since `issued_at`.
    """

    series: str
    heard_at: datetime | None
    state: str
    reaches_at: datetime | None
    issued_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFigure:
    """One grid signal.

    Attributes:
        flags: of its value.
        ends_at: of the interval whose value this is.
        ahead: its hours ahead are forecast; the others have no rung, and no decision rests on them.
        rung: what decisions rest on. `issued_at`: of the forecast they rest on.
        state: how the newest poll ended. `skill`: how far its sources were off.
        hours: what is forecast of the hours ahead, the present slot first. `hour_s`: seconds that
            an hour of the signal takes; fewer in a compressed recording.
    """

    signal: str
    zone: str
    quality: str = ""
    flags: tuple[str, ...] = ()
    g_per_kwh: float | None = None
    ends_at: datetime | None = None
    heard_at: datetime | None = None
    stale_after_s: float = 0.0
    ahead: bool = True
    rung: Rung = Rung.NONE
    issued_at: datetime | None = None
    state: str = ""
    skill: tuple[SkillLine, ...] = ()
    hours: tuple[IntensitySlot, ...] = ()
    hour_s: float = 3600.0

    def usable(self, now: datetime) -> bool:
        """Whether decisions may rest on it at `now`."""
        if self.heard_at is None or self.ends_at is None or self.rung not in ACTS:
            return False
        return now < self.ends_at and (now - self.heard_at).total_seconds() <= self.stale_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyFigure:
    """Joules of one run and line, and the time of it that nobody measured.

    Not by source or quality: a slot may change either, and a counter must never fall.

    Attributes:
        run: its name; "" of what is nobody's. `run_id`: of its series: names may come again.
        flags: what any of the joules is.
    """

    run: str
    run_id: str
    line: str
    energy_mj: int
    unobserved_ms: int = 0
    upper_mj: int = 0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GramsFigure:
    """Grams that one run and line emitted in one signal: as first reported, and as they stand.

    `upper_ug`: the most beyond that while nobody measured. `flags`: what any of the grams is.
    """

    run: str
    run_id: str
    line: str
    signal: str
    first_ug: int
    newest_ug: int
    upper_ug: int = 0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFigure:
    """The settled saving of one run, and its parts where they are known."""

    run: str
    run_id: str
    baseline: str
    found: Saving

    @property
    def signal(self) -> str:
        """What its grams are accounted in; a saving has one."""
        return self.found.signals[0] if self.found.signals else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchFigure:
    """The newest switch of a run. `by`: operator or policy. `reason`: key of the decision."""

    from_point: str
    to_point: str
    by: str
    reason: str
    state: str
    ordered_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigure:
    """One run.

    Attributes:
        state: live, lost, finished, or how its last launch said that it leaves.
        silent_s: since its newest sign of life. `frozen_by`: wattmesh, person, or "".
        saves_nothing: its newest save step left no checkpoint.
    """

    run: str
    name: str
    state: str
    point: str
    layout: str
    tokens: int
    tokens_per_s: float | None
    wakes_at: datetime | None = None
    tokens_total: int = 0
    deadline: datetime | None = None
    silent_s: float = 0.0
    frozen_by: str = ""
    saves_nothing: bool = False
    switch: SwitchFigure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything that is read from the journal for one scrape.

    Attributes:
        switches: how often those of (run id, outcome) ended.
        saved: of every run whose saving is settled, finished ones too. `cluster`: by signal.
    """

    energy: tuple[EnergyFigure, ...] = ()
    grams: tuple[GramsFigure, ...] = ()
    runs: tuple[RunFigure, ...] = ()
    switches: Mapping[tuple[str, str], int] = field(default_factory=dict)
    saved: tuple[SavedFigure, ...] = ()
    cluster: tuple[SavedLine, ...] = ()
    signals: tuple[SignalFigure, ...] = ()
    exogenous: tuple[ExogenousFigure, ...] = ()


class FigureReader:
    """Reads the figures.

    Counts each ended switch once instead of reading them all each time, and looks at the saving of
    a run that has finished once in a while: only a revised intensity can change it.
    """

    def __init__(self, journal: Journal, loop_facts: LoopFacts) -> None:
        """Begin without having read anything."""
        self._journal = journal
        self._loop_facts = loop_facts
        self._ended: dict[str, tuple[str, str]] = {}
        self._last: dict[str, SwitchRow] = {}
        self._reasons: dict[str, str] = {}
        self._savings: dict[str, tuple[float, Saving]] = {}

    def read(self) -> Figures:
        """Read everything.

        Raises:
            JournalUnavailable: nothing could be read.
        """
        newest = self._journal.switches.history(limit=NEWEST if self._ended else MOST_SWITCHES)
        self._ended |= {
            row.switch_id: (row.run, row.state.value) for row in newest if row.state in FINAL
        }
        # Among the newest of all runs, a run that is seldom switched has none.
        self._last |= {row.run: row for row in reversed(newest)}
        return self._read(Counter(self._ended.values()))

    def _read(self, ended: Mapping[tuple[str, str], int]) -> Figures:
        """Read the sums; `ended`: how often switches of (run, outcome) ended."""
        journal, loop_facts, now = self._journal, self._loop_facts, self._loop_facts.clock.now()
        rows = journal.runs.all(now)
        names = {row.run: row.name for row in rows}
        totals = journal.ledger.totals()
        ahead = loop_facts.signals.ahead
        facts = {str(each.signal): each for each in (*ahead, *loop_facts.signals.reports)}
        savings, everything = self._saved(rows), journal.runs.frozen_all()
        return Figures(
            energy=energy(totals, names),
            grams=grams(totals, names),
            runs=tuple(_run_figure(row, now, self._newest(row), everything) for row in rows),
            switches=dict(sorted(ended.items())),
            saved=savings,
            cluster=saved_lines([each.found for each in savings], totals),
            exogenous=tuple(
                _exogenous_figure(journal, each) for each in loop_facts.signals.exogenous
            ),
            signals=tuple(
                _signal_figure(
                    journal, each, now, ahead=each.signal in {one.signal for one in ahead}
                )
                for each in facts.values()
            ),
        )

    def _newest(self, run: RunRow) -> SwitchFigure | None:
        """Give the newest switch of a run that has not finished."""
        if run.finished_at is not None:
            self._last.pop(run.run, None)
        switch = self._last.get(run.run)
        if switch is None:
            return None
        if switch.switch_id not in self._reasons:
            self._reasons[switch.switch_id] = self._reason(switch)
        return SwitchFigure(
            from_point=switch.from_point,
            to_point=switch.to_point,
            by=switch.requested_by,
            reason=self._reasons[switch.switch_id],
            state=switch.state.value,
            ordered_at=switch.created_at,
        )

    def _reason(self, switch: SwitchRow) -> str:
        """Find the key of the decision that ordered a switch; "" where it is not kept any more."""
        made = self._journal.decisions.list(switch.run, limit=DECISIONS_LOOKED_AT)
        return next(
            (
                each.kind
                for each in made
                if each.action == Action.SWITCH
                and each.target == switch.to_point
                and each.first_at <= switch.created_at
            ),
            "",
        )

    def _saved(self, rows: Sequence[RunRow]) -> tuple[SavedFigure, ...]:
        closed, now_s = self._journal.ledger.closed_runs(), self._loop_facts.clock.monotonic()
        found = []
        for row in rows:
            read_s, saving = self._savings.get(row.run, (-inf, Saving()))
            if row.baseline and (row.finished_at is None or now_s - read_s > LOOK_AGAIN_S):
                saving = run_saving(self._journal, row, closed)
                if row.finished_at is not None:
                    self._savings[row.run] = (now_s, saving)
            if saving.settled:
                found.append(
                    SavedFigure(run=row.name, run_id=row.run, baseline=row.baseline, found=saving)
                )
        return tuple(found)


def energy(totals: Iterable[TotalRow], names: Mapping[str, str]) -> tuple[EnergyFigure, ...]:
    """Add joules up by run and line; incarnations are one series, namesakes are not."""
    found: dict[tuple[str, str], list[TotalRow]] = {}
    for row in totals:
        if row.scenario == ENERGY:
            found.setdefault((row.run, row.line), []).append(row)
    return tuple(
        EnergyFigure(
            run=names.get(run, run),
            run_id=run,
            line=line,
            energy_mj=sum(row.energy_mj for row in rows),
            unobserved_ms=sum(row.unobserved_ms for row in rows),
            upper_mj=sum(row.upper_mj for row in rows),
            flags=flags_of(*(row.energy_quality for row in rows)),
        )
        for (run, line), rows in sorted(found.items())
    )


def grams(totals: Iterable[TotalRow], names: Mapping[str, str]) -> tuple[GramsFigure, ...]:
    """Add up what was emitted by run, line and signal; provisional and measured slots together.

    What other scenarios would have emitted is no emission: it is in the savings.
    """
    found: dict[tuple[str, str, str], list[TotalRow]] = {}
    for row in totals:
        if row.scenario == ACTUAL:
            found.setdefault((row.run, row.line, row.signal), []).append(row)
    return tuple(
        GramsFigure(
            run=names.get(run, run),
            run_id=run,
            line=line,
            signal=signal,
            first_ug=sum(row.first_carbon_ug for row in rows),
            newest_ug=sum(row.carbon_ug for row in rows),
            upper_ug=sum(row.upper_ug for row in rows),
            flags=flags_of(*(word for row in rows for word in row.qualities)),
        )
        for (run, line, signal), rows in sorted(found.items())
    )


def _run_figure(
    row: RunRow, now: datetime, switch: SwitchFigure | None, everything: str
) -> RunFigure:
    """Show one run; `everything`: why all runs are frozen, "" where they are not."""
    point, frozen = row.point, row.frozen or everything
    by = "wattmesh" if frozen.startswith("wattmesh") else "person"
    return RunFigure(
        run=row.run,
        name=row.name,
        state=row.ending if row.state == "lost" and row.ending else row.state,
        point=point.id if point else "",
        layout=str(row.layout),
        tokens=row.tokens,
        tokens_per_s=row.tokens_per_s,
        wakes_at=row.wakes_at if row.asleep_at else None,
        tokens_total=row.tokens_total or (row.catalogue.tokens_total if row.catalogue else 0),
        deadline=row.deadline,
        silent_s=max(0.0, (now - row.last_seen_at).total_seconds()),
        frozen_by=by if frozen else "",
        saves_nothing=bool(row.trouble),
        switch=switch,
    )


def _exogenous_figure(journal: Journal, series: str) -> ExogenousFigure:
    fetch = journal.exogenous.last_fetch(series)
    reaches_at, issued_at = journal.exogenous.reach(series)
    return ExogenousFigure(
        series=series.removeprefix(EXOGENOUS),
        heard_at=fetch.ok_at if fetch else None,
        state=fetch.state if fetch else "",
        reaches_at=reaches_at,
        issued_at=issued_at,
    )


def _signal_figure(
    journal: Journal, facts: SignalFacts, now: datetime, *, ahead: bool
) -> SignalFigure:
    fetch = journal.carbon.last_fetch(facts.signal)
    view = carbon_view(journal, facts, now)
    point = running_point(journal, facts, now)
    quality = point.quality if point else Quality.FORECAST
    return SignalFigure(
        signal=str(facts.signal),
        zone=facts.signal.zone,
        quality=quality.value if view.slots else "",
        flags=intensity_flags(quality, str(facts.signal)),
        g_per_kwh=view.now_g_per_kwh,
        ends_at=view.slots[0].end if view.slots else None,
        heard_at=fetch.ok_at if fetch else None,
        stale_after_s=facts.stale_after_s,
        ahead=ahead,
        rung=view.rung,
        issued_at=view.issued_at,
        state=fetch.state if fetch else "",
        skill=skill_lines(journal.forecasts.skill(facts.signal)),
        hours=view.slots if ahead else (),
        hour_s=facts.day_s / 24,
    )
