"""Put the whole daemon on one screen: journal rows and the loop facts become one `StatusView`.

What a person at three in the morning needs: what it does, what is wrong, and what to do about it.
Invariant: only this module reads; `trouble.py` decides what is wrong, and is pure.
"""

import os
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import wattmesh
from wattmesh.controller import marks
from wattmesh.controller.carbon_views import CarbonLine
from wattmesh.controller.cycle.fleet import controls
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_row import AWAY, DONE
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.controller.loop_facts import Coverage, LoopFacts
from wattmesh.controller.signals.lines import carbon_line
from wattmesh.controller.status.cap_lines import (
    announced_caps,
    cap_line,
    demand_lines,
    power_flags,
)
from wattmesh.controller.status.trouble import span, troubles
from wattmesh.controller.status.waiting import (
    asleep_line,
    last_step_s,
    queued_line,
    waits_for,
)
from wattmesh.controller.views import (
    CycleLine,
    JournalLine,
    PowerLine,
    RunLine,
    StatusView,
    SwitchLine,
)
from wattmesh.policies.decision import Decision
from wattmesh.reconfig.switch import position
from wattmesh.telemetry.energy.attribution import is_gpu
from wattmesh.telemetry.energy.sampler import Sample
from wattmesh.telemetry.readings import Component, Quality

FINISHED_SHOWN = timedelta(days=1)

BOOKED_WITHIN_S = 150.0
"""After this long, energy of a computing run has been booked, even if its agent delivers late."""

MOST = {"lost": 3, "finished": 20}
"""How many runs of one user the screen lists, by state; `wattmesh runs` lists them all."""


def status(journal: Journal, loop_facts: LoopFacts) -> StatusView:
    """Read the journal and build the whole screen.

    Raises:
        JournalUnavailable: the journal does not answer; `last_known` still can.
    """
    now = loop_facts.clock.now()
    rows = journal.runs.recent(now, now - FINISHED_SHOWN)
    told = shown(rows)
    runs = run_lines(journal, loop_facts, told, now)
    decision = carbon_line(
        journal, loop_facts.signals.decision, now, exogenous=loop_facts.signals.exogenous
    )
    accounting = decision
    if loop_facts.signals.accounting != loop_facts.signals.decision:
        accounting = carbon_line(journal, loop_facts.signals.accounting, now, decides=False)
    view = _assemble(loop_facts, now, runs, (decision, accounting), journal.runs.frozen_all())
    left_out = _lost_by_user(rows) - _lost_by_user(told)
    view = replace(view, lost_more={str(uid): count for uid, count in sorted(left_out.items())})
    return replace(view, trouble=troubles(view, loop_facts))


def _lost_by_user(rows: Iterable[RunRow]) -> Counter[int]:
    """Count the lost runs of each user; a run that said how it ended is not lost."""
    return Counter(row.owner_uid for row in rows if row.state == "lost" and not row.ending)


def shown(rows: Iterable[RunRow]) -> tuple[RunRow, ...]:
    """Leave out lost and finished runs of a user who has many, but for the newest few (`MOST`)."""
    rows = tuple(rows)
    silent: dict[tuple[str, int], list[RunRow]] = {}
    for row in rows:
        if row.state in MOST:
            silent.setdefault((row.state, row.owner_uid), []).append(row)
    left_out = {
        row.run
        for (state, _), theirs in silent.items()
        for row in sorted(theirs, key=lambda each: each.last_seen_at, reverse=True)[MOST[state] :]
    }
    return tuple(row for row in rows if row.run not in left_out)


def last_known(
    loop_facts: LoopFacts, before: StatusView | None, unanswered_s: float = 0.0
) -> StatusView:
    """Build the screen while the journal does not answer: the runs as they were last seen.

    Args:
        loop_facts: what the daemon knows by itself.
        before: the newest screen that was built; None: there is none, so no run is known.
        unanswered_s: seconds for which the journal's server has not answered a query.
    """
    now = loop_facts.clock.now()
    if before is None:
        view = replace(_assemble(loop_facts, now, (), (None, None), ""), never_read=True)
    else:
        view = _assemble(
            loop_facts, now, before.runs, (before.carbon, before.accounting), before.frozen
        )
        view = replace(view, lost_more=before.lost_more)
    slow = ""
    if loop_facts.outage is None:
        slow = (
            f"The journal has not answered for {span(unanswered_s)}, so runs are as last known"
            ": look at its server's load and locks (`pg_stat_activity`) if it stays so."
        )
        view = replace(view, journal=replace(view.journal, state="slow", trouble=slow))
    wrong = troubles(view, loop_facts, journal_hangs_s=unanswered_s)
    view = replace(view, trouble=(slow, *wrong) if slow else wrong)
    if before is None:
        return view
    return replace(view, stale_s=max(0.0, (now - before.at).total_seconds()))


def run_lines(
    journal: Journal, loop_facts: LoopFacts, rows: Iterable[RunRow], now: datetime
) -> tuple[RunLine, ...]:
    """Show runs; each table is read once, however many they are."""
    switches, frozen = journal.switches.all_open(), journal.runs.frozen_all()
    decisions = loop_facts.decisions()
    return tuple(
        _run_line(
            loop_facts,
            row,
            now,
            switch=switches.get(row.run),
            decision=decisions.get(row.run),
            frozen=row.frozen or frozen,
        )
        for row in rows
    )


def run_line(journal: Journal, loop_facts: LoopFacts, row: RunRow, now: datetime) -> RunLine:
    """Show one run."""
    (line,) = run_lines(journal, loop_facts, (row,), now)
    return line


def _run_line(
    loop_facts: LoopFacts,
    row: RunRow,
    now: datetime,
    *,
    switch: SwitchRow | None,
    decision: Decision | None,
    frozen: str,
) -> RunLine:
    point = row.point
    catalogue = row.catalogue
    expected = expected_flags(loop_facts, row)
    trains = row.state == "live" and not row.ending
    lives = trains or row.state in AWAY
    said = [asleep_line(row, now)] if row.state == "asleep" else []
    said += [queued_line(row, now)] if row.state == "queued" else []
    said += [decision.reason] if decision and lives and decision.reason else []
    said += [unread(loop_facts, row)] if trains else []
    return RunLine(
        name=row.name,
        run=row.run,
        state=row.state,
        activity=_state_word(row, switch, frozen, loop_facts),
        owner_uid=row.owner_uid,
        attempt=row.attempt,
        step=row.step,
        tokens=row.tokens,
        tokens_total=row.tokens_total or (catalogue.tokens_total if catalogue else 0),
        loss=row.loss,
        layout="" if row.observed else str(row.layout),
        ranks=len(row.ranks),
        world_size=row.world_size,
        point=point.id if point else "",
        clock_mhz=point.clock_mhz if point else None,
        tokens_per_s=(row.tokens_per_s or None) if trains else None,
        j_per_token=point.j_per_token if point else None,
        deadline=row.deadline,
        slack_s=decision.slack_s if decision else None,
        switch=switch_line(switch, now, expected) if switch else None,
        frozen=frozen,
        ordered_point=row.ordered_point,
        last_seen_s=max(0.0, (now - row.last_seen_at).total_seconds()),
        sentence=marks.sentence(" ".join(filter(None, said)), expected),
        simulated=catalogue.simulated if catalogue else (),
        flags=marks.point_flags(catalogue, point) if catalogue and point else (),
        phase=row.phase,
        last_step_s=last_step_s(row, now),
        waits_for=waits_for(row, now),
        trouble=row.trouble,
        ended=row.finish_reason if row.ending else "",
        measured=loop_facts.points.get(row.run, ()),
        asleep_at=row.asleep_at,
        wakes_at=row.wakes_at,
        held_as=row.held_as,
    )


def why_unread(loop_facts: LoopFacts, row: RunRow) -> str:
    """Say why nothing was read of a run."""
    if not _power_source(loop_facts):
        return "Power is not read: set a source in the daemon's settings ([power])."
    if why := unread(loop_facts, row):
        return why
    if not any(row.gpus):
        return "It named no GPU, and no process of it was seen on one."
    heard_s = (row.last_seen_at - row.incarnation_at).total_seconds()
    if (
        heard_s < BOOKED_WITHIN_S
        or not loop_facts.fleet.gpus
        or not row.gpus_used <= loop_facts.fleet.gpus.lately
    ):
        return "Nothing of its GPUs has been booked yet."
    return (
        f"No process of it was seen on {_first_of(sorted(row.gpus_used))} in "
        f"{span(heard_s)}; what they drew is booked as idle."
    )


def unread(loop_facts: LoopFacts, row: RunRow) -> str:
    """Say which GPUs of a run were never read, or why they are not all known; else ""."""
    dark = loop_facts.fleet.gpus.unread(row) if loop_facts.fleet.gpus else []
    if not dark:
        return f"Not all its GPUs are known: {row.gpus_unknown}." if row.gpus_unknown else ""
    return (
        f"Nobody reads {_first_of(dark)} of the GPUs that it registered; start `wattmesh agent` on "
        "their nodes, or mend what the job says of its GPUs."
    )


def _first_of(gpus: Sequence[str]) -> str:
    return f"{gpus[0]} and {len(gpus) - 1} more" if len(gpus) > 1 else gpus[0]


def expected_flags(loop_facts: LoopFacts, row: RunRow) -> tuple[str, ...]:
    """Give the flags of the grams that are expected of a run now."""
    decision = loop_facts.signals.decision
    return marks.expected_flags(row.catalogue, str(decision.signal) if decision else "")


def switch_line(switch: SwitchRow, now: datetime, flags: tuple[str, ...]) -> SwitchLine:
    """Show a switch under way; `flags`: of the grams in its reason."""
    return SwitchLine(
        switch_id=switch.switch_id,
        from_point=switch.from_point,
        to_point=switch.to_point,
        state=switch.state.value,
        position=position(switch.state),
        age_s=max(0.0, (now - switch.created_at).total_seconds()),
        requested_by=switch.requested_by,
        reason=marks.sentence(switch.reason, flags),
    )


def power_line(loop_facts: LoopFacts) -> PowerLine:
    """Show all GPUs together from the newest sample."""
    sampled = loop_facts.sampled
    coverage = sampled.coverage if sampled else Coverage()
    sample = sampled.sample if sampled else Sample()
    answering = {each.gpu_uuid for each in sample.readings if is_gpu(each.gpu_uuid) and each.tells}
    missing = {each for each in sample.missing if is_gpu(each)}
    ordered, clocks = _clocks(loop_facts)
    covered, to_cover = loop_facts.gpu_coverage
    return PowerLine(
        source=_power_source(loop_facts),
        total_w=_power_w(sample, gpus=True),
        gpus=len(answering),
        expected=len(answering | missing),
        age_s=loop_facts.clock.monotonic() - sampled.monotonic_s if sampled else None,
        unobserved_share=(
            coverage.unobserved_s / coverage.device_s if coverage.device_s > 0 else None
        ),
        simulated=any(each.quality is Quality.SIMULATED for each in sample.readings),
        trouble=sample.trouble,
        hosts_w=_power_w(sample, gpus=False),
        covered=covered,
        to_cover=to_cover,
        clocks_as_ordered=ordered,
        clocks=clocks,
        flags=power_flags(loop_facts),
    )


def _power_source(loop_facts: LoopFacts) -> str:
    """Name where power comes from; "" when it is not read."""
    power = loop_facts.settings.power
    if power.source != "none":
        return power.source
    if power.prometheus is not None:
        return "prometheus"
    return "static" if power.static is not None else ""


def _power_w(sample: Sample, *, gpus: bool) -> float | None:
    """Sum the power of the GPUs, or of processors and memory; None when none was read."""
    known = [
        each.power_w
        for each in sample.readings
        if is_gpu(each.gpu_uuid) is gpus
        and each.component is not Component.NODE
        and each.power_w is not None
    ]
    return sum(known) if known else None


def _clocks(loop_facts: LoopFacts) -> tuple[int, int]:
    """Count (GPUs whose clock is locked as ordered, GPUs whose actuator is heard)."""
    if loop_facts.snapshot is None:
        return 0, 0
    held = controls(loop_facts.fleet.nodes, loop_facts.clock.now())
    wished = {
        gpu: row.clock_mhz
        for row in loop_facts.snapshot.runs
        if row.state != "finished" and row.clock_mhz is not None
        for gpu in row.gpus
    }
    cap = loop_facts.snapshot.cap
    for gpu, lowered in cap.plan.boards.items() if cap else ():
        clocks = [each for each in (wished.get(gpu), lowered.clock_mhz) if each is not None]
        wished |= {gpu: min(clocks)} if clocks else {}
    ordered = sum(
        each.clock_mhz == wished.get(gpu) and not each.trouble for gpu, each in held.items()
    )
    return ordered, len(held)


def cycle_line(loop_facts: LoopFacts) -> CycleLine:
    """Show the newest turn of the cycle."""
    turned, state = loop_facts.turned, loop_facts.loops["cycle"]()
    runs = loop_facts.snapshot.runs if loop_facts.snapshot else ()
    expected = {flag for row in runs for flag in expected_flags(loop_facts, row)}
    took_s = state.last_took_s
    return CycleLine(
        age_s=loop_facts.clock.monotonic() - turned.monotonic_s if turned else None,
        duration_ms=None if took_s is None else took_s * 1e3,
        every_s=state.every_s,
        sentence=marks.sentence(turned.report.sentence, expected) if turned else "",
        overruns=state.overruns,
        errors=state.bugs,
    )


def _assemble(
    loop_facts: LoopFacts,
    now: datetime,
    runs: tuple[RunLine, ...],
    carbon: tuple[CarbonLine | None, CarbonLine | None],
    frozen: str,
) -> StatusView:
    power, outage = power_line(loop_facts), loop_facts.outage
    settings = loop_facts.settings
    view = StatusView(
        at=now,
        version=wattmesh.__version__,
        host=socket.gethostname(),
        pid=os.getpid(),
        up_s=loop_facts.clock.monotonic() - loop_facts.started_s,
        mode=settings.mode.value,
        leading=loop_facts.leading,
        leader=loop_facts.lead.leader,
        epoch=loop_facts.lead.epoch,
        frozen=frozen,
        cycle=cycle_line(loop_facts),
        carbon=carbon[0],
        accounting=carbon[1],
        power=power,
        runs=runs,
        journal=JournalLine(
            state="unavailable" if outage else "ok",
            database=settings.journal.url.partition(":")[0].partition("+")[0],
            trouble=outage.sentence if outage else "",
            identity=loop_facts.lead.journal,
        ),
        trouble=(),
        simulated=_simulated(power, runs, carbon),
        settings=loop_facts.settings_path,
        cap=cap_line(loop_facts, now),
        announced_caps=announced_caps(loop_facts, now),
        demand_response=demand_lines(loop_facts),
    )
    return replace(view, trouble=troubles(view, loop_facts))


def _simulated(
    power: PowerLine, runs: tuple[RunLine, ...], carbon: tuple[CarbonLine | None, ...]
) -> tuple[str, ...]:
    named = ["GPU power"] if power.simulated else []
    named += [f"grid ({each.signal})" for each in carbon if each is not None and each.simulated]
    named += [f"{run.name} {what}" for run in runs for what in run.simulated]
    return tuple(dict.fromkeys(named))


def _state_word(row: RunRow, switch: SwitchRow | None, frozen: str, loop_facts: LoopFacts) -> str:
    if row.ending:
        return "finished" if row.ending == DONE else row.ending
    if row.state != "live":
        return row.state
    if switch is not None:
        return "switching"
    if frozen:
        return "frozen"
    only_observed = row.observed or loop_facts.settings.mode.value == "observe"
    return "observed" if only_observed else "holding"
