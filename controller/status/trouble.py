"""What is wrong, for a person who was woken: one sentence each, ending in what to do. Pure.

Invariant: nothing is listed that needs no act, and nothing that needs one is left out; the most
urgent comes first.
"""

from collections.abc import Iterator, Mapping

from wattmesh.controller import marks
from wattmesh.controller.carbon_views import CarbonLine, ExogenousLine
from wattmesh.controller.cycle import fences
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.process.trusted_time import UNREAD
from wattmesh.controller.views import PointLine, RunLine, StatusView
from wattmesh.quantities import joules
from wattmesh.reconfig.ranges import clean
from wattmesh.telemetry.energy.attribution import is_gpu
from wattmesh.telemetry.readings import flags_of

PLANS_FAILED = 3
"""So many failed plans in a row are trouble; one planner process that is killed is not."""

FIRST_ANSWER_S = 120.0
"""For this long after its start, the daemon does not complain of a signal it never heard."""

NODES_NAMED = 5
"""How many nodes whose GPUs do not answer are named; the others are counted."""

FROM_THE_PAST = "Once its hours are over, the grid is forecast from its past alone."
LONG_SILENT_S = 2 * 3600.0
"""A provider silent for this long is worth a look, even if no run is held for it yet."""


def troubles(
    view: StatusView, loop_facts: LoopFacts, *, journal_hangs_s: float = 0.0
) -> tuple[str, ...]:
    """Name everything that needs a human.

    Args:
        view: the screen.
        loop_facts: what the daemon knows by itself.
        journal_hangs_s: for how long the journal has not answered: whatever stands no longer than
            that waits for it, and a restart of the daemon would not help.
    """
    found = (
        *_daemon(loop_facts, journal_hangs_s),
        *_sources(view, loop_facts),
        *_devices(view, loop_facts),
        *_cap(view),
        *_runs(view),
        *(
            f"{marks.sentence(each.alert, each.flags)}."
            for each in loop_facts.budgets.lines
            if each.alert
        ),
    )
    return tuple(dict.fromkeys(found))


def span(seconds: float) -> str:
    """Write a duration with one unit: 40 s, 12 min, 3.2 h, 4.1 d."""
    for limit, unit, word in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.0f} {word}" if value >= 10 or unit == 1 else f"{value:.1f} {word}"
    return f"{seconds / 86_400:.1f} d"


def off_catalogue(line: PointLine) -> str:
    """Say how far a point is from its catalogue; "" where there is no alarm."""
    said = [f"trains at {100 * line.speed_ratio:.0f} % of the speed"] if line.speed_alarm else []
    if line.power_alarm and line.power_ratio is not None:
        share = marks.marked(f"{100 * line.power_ratio:.0f} %", line.flags)
        said.append(f"draws {share} of the watts")
    over = f"that its catalogue states (over {span(line.measured_s)} of steady training)"
    return f"{' and '.join(said)} {over}" if said else ""


def _daemon(loop_facts: LoopFacts, journal_hangs_s: float) -> Iterator[str]:
    if loop_facts.outage is not None:
        for_s = loop_facts.clock.monotonic() - loop_facts.outage.since_s
        said = loop_facts.outage.sentence.rstrip(".")
        yield (
            f"{said[:1].upper()}{said[1:]} (for {span(for_s)} now). Nothing is switched meanwhile, "
            "runs train on, and wattmesh goes on by itself once the journal answers."
        )
    yield from _loops(loop_facts, journal_hangs_s)
    if loop_facts.settings_trouble:
        yield loop_facts.settings_trouble
    if loop_facts.certificate_trouble:
        yield loop_facts.certificate_trouble
    yield from _plans(loop_facts)
    doubt = loop_facts.trusted.doubt()
    if doubt not in ("", UNREAD):
        yield doubt
    for month in loop_facts.budgets.sealed_ahead:
        yield (
            f"{month} is closed and has not ended, by a wall clock that was wrong: open it again "
            f"with `wattmesh reopen {month} --reason ...`."
        )


def _plans(loop_facts: LoopFacts) -> Iterator[str]:
    planning = loop_facts.planning()
    if planning.in_a_row >= PLANS_FAILED:
        yield (
            f"No plan can be made: {planning.trouble.rstrip('.')} ({planning.in_a_row} times in a "
            "row). The price rule moves runs meanwhile, which saves less; see why in "
            "`journalctl -u wattmesh -n 50`."
        )


def _loops(loop_facts: LoopFacts, journal_hangs_s: float) -> Iterator[str]:
    now_s = loop_facts.clock.monotonic()
    for name, read in loop_facts.loops.items():
        state = read()
        since_s = now_s - (state.last_progress_s or loop_facts.started_s)
        if state.trouble.startswith("a bug"):
            yield (
                f"The {name} loop: {state.trouble}, with the traceback in `journalctl -u wattmesh`;"
                " nothing is lost, and `systemctl restart wattmesh` is safe at any time."
            )
        elif since_s > journal_hangs_s + 5 * state.every_s + 10:
            yield (
                f"The {name} loop has made no progress for {span(since_s)} (it should every "
                f"{state.every_s:g} s): look at `journalctl -u wattmesh -n 50`, then "
                "`systemctl restart wattmesh`, which is safe at any time."
            )


def _sources(view: StatusView, loop_facts: LoopFacts) -> Iterator[str]:
    young = loop_facts.clock.monotonic() - loop_facts.started_s < FIRST_ANSWER_S
    for line in (view.carbon, view.accounting):
        if line is not None and not (young and line.state == ""):
            yield from _signal(line)
            for each in line.exogenous:
                yield from _exogenous(each)
    if view.power.trouble:
        yield (
            f"GPU power is not read: {view.power.trouble.rstrip('.')}. Energy is counted as "
            "unobserved until it is: check the source in [power]."
        )
    elif view.power.gpus < view.power.expected:
        missing = view.power.expected - view.power.gpus
        yield (
            f"{missing} of {view.power.expected} GPUs do not answer{_where(loop_facts)}; their "
            f"energy is counted as unobserved: {_why(loop_facts) or 'check the node they are in'}."
        )
    elif why := _why(loop_facts):
        yield f"Power is read in part, or by a second-best source: {why}."


def _where(loop_facts: LoopFacts) -> str:
    """Name the nodes whose GPUs do not answer; "" where this daemon reads them itself."""
    missing = {*loop_facts.sampled.sample.missing} if loop_facts.sampled else set[str]()
    silent = {
        clean(node.node): len(here)
        for node in loop_facts.fleet.nodes
        if (here := [each for each in missing.intersection(node.devices) if is_gpu(each)])
    }
    most = sorted(silent, key=lambda each: (-silent[each], each))
    more = [f"and {len(most) - NODES_NAMED} more nodes"] if len(most) > NODES_NAMED else []
    words = [f"{silent[each]} on {each}" for each in most[:NODES_NAMED]] + more
    return f" ({', '.join(words)})" if words else ""


def _why(loop_facts: LoopFacts) -> str:
    """Give the first reason why a device or a source is not read; "" when none is known."""
    said = loop_facts.sampled.sample.troubles if loop_facts.sampled else ()
    return next((clean(f"{who}: {why.rstrip('.')}") for who, why in said), "")


def _devices(view: StatusView, loop_facts: LoopFacts) -> Iterator[str]:
    """What is wrong with single devices and nodes, unless `_sources` says it already."""
    flags = view.power.flags
    for said in (marks.sentence(each, flags) for each in loop_facts.exporter.troubles()):
        yield f"{said[:1].upper()}{said[1:].rstrip('.')}."
    power = view.power
    if power.covered < power.to_cover and power.gpus >= power.expected:
        yield (
            f"Coverage {power.covered} of {power.to_cover} GPUs: savings are estimated, the "
            "others count at their most, and runs on them are held until they are read; see that "
            "`wattmesh agent` runs on their nodes, or retire nodes that are gone (`wattmesh "
            "nodes retire NODE`)."
        )
    for node in loop_facts.fleet.nodes:
        yield from _refused_rows(node)
    if loop_facts.lead.epoch is not None:
        yield from fences.sentences(
            loop_facts.fleet.nodes,
            view.at,
            journal=loop_facts.lead.journal,
            epoch=loop_facts.lead.epoch,
        )
    for name, why in loop_facts.node_faults.all().items():
        said = clean(why).replace(":", ",")
        yield (
            f"{clean(name)}: what its agent delivers is refused ({said}). It keeps what it "
            "measured and offers it again; other nodes go on."
        )


def _refused_rows(node: NodeRow) -> Iterator[str]:
    told = node.facts.get("refused")
    refused: Mapping[str, object] = told if isinstance(told, Mapping) else {}
    rows, energy_j = refused.get("rows"), refused.get("energy_j")
    # What follows the first colon of a sentence is what to do.
    flags = flags_of(*(str(each.get("quality", "")) for each in node.devices.values()))
    why = clean(str(refused.get("why", ""))[:300]).rstrip(".").replace(":", ",")
    if isinstance(rows, int) and rows > 0 and isinstance(energy_j, int | float):
        held_back = marks.marked(joules(energy_j), flags)
        yield (
            f"{node.node} keeps back ledger rows that this daemon refuses, {rows} with {held_back} "
            f"that no sum has ({why}): install the same version of wattmesh on both, and restart "
            "the agent there to offer them at once."
        )


def _cap(view: StatusView) -> Iterator[str]:
    yield from (each.sentence for each in view.demand_response if each.held)
    cap = view.cap
    if cap is None:
        return
    if not cap.meets:
        yield cap.sentence
    if cap.late:
        yield (
            f"The power cap makes {', '.join(cap.late)} miss the deadline, for a cap outranks it: "
            "end it with `wattmesh powercap end`, raise it, or move the deadline."
        )


def _signal(line: CarbonLine) -> Iterator[str]:
    """Say what a silent or refused signal means; a static number is silent by choice."""
    if line.state == "refused":
        yield (
            f"{line.provider} refuses to answer, and will until you mend it: "
            f"{line.detail.rstrip('.')}. See [carbon] in the settings; `wattmesh carbon providers` "
            "asks it at once. " + _meanwhile(line)
        )
    elif line.trouble and line.rung != "static":
        yield (
            f"{line.trouble.rstrip('.')}. {_meanwhile(line)} Check the network and the provider, "
            "`wattmesh carbon now` shows when it answers."
        )
    elif line.state == "failed" and line.age_s is not None and line.age_s > LONG_SILENT_S:
        yield (
            f"{line.provider} has not answered for {span(line.age_s)} "
            f"({line.detail.rstrip('.')}). {_meanwhile(line)} Check the network and the provider."
        )


def _exogenous(line: ExogenousLine) -> Iterator[str]:
    """Say what a silent or refused provider of wind, sun, load or weather costs."""
    if line.state == "refused":
        yield (
            f"{line.series} refuses to answer, and will until you mend it: "
            f"{line.detail.rstrip('.')}. See [[carbon.exogenous]] in the settings. {FROM_THE_PAST}"
        )
    elif line.state == "failed" and (line.age_s is None or line.age_s > LONG_SILENT_S):
        since = "yet" if line.age_s is None else f"for {span(line.age_s)}"
        yield (
            f"{line.series} has not answered {since} ({line.detail.rstrip('.')}). {FROM_THE_PAST} "
            "Check the network and the provider."
        )


def _meanwhile(line: CarbonLine) -> str:
    if line.trouble:
        return (
            "Every run holds until the signal is back, and energy is booked by stand-ins, or "
            "without grams, meanwhile."
        )
    return "Decisions go on with what is known of the hours ahead, and energy by stand-ins."


def _runs(view: StatusView) -> Iterator[str]:
    """What is wrong with single runs; one line for all lost runs of a user who has many."""
    for uid, more in view.lost_more.items():
        theirs = [run for run in view.runs if run.activity == "lost" and str(run.owner_uid) == uid]
        names = ", ".join(run.name for run in theirs)
        yield (
            f"{more + len(theirs)} runs of uid {uid} have not been heard for a while (the newest: "
            f"{names}): `wattmesh runs` lists them, `wattmesh retire RUN` ends one, and each ends "
            "by itself in time (journal.lost_days)."
        )
    for run in view.runs:
        if run.ended:
            continue
        if run.state == "lost" and run.wakes_at is not None and run.asleep_at is None:
            yield (
                f"{run.name} left for another size {span(run.last_seen_s)} ago and was not heard "
                f"since: see why neither begins ({run.held_as}), and start it again by the command "
                "that started it; it trains on from its newest checkpoint."
            )
        elif run.state == "lost" and run.wakes_at is not None:
            late_s = (view.at - run.wakes_at).total_seconds()
            yield (
                f"{run.name} was to wake {span(late_s)} ago and was not heard since: see what "
                f"became of its next launch ({run.held_as or 'its launcher'}), and start it again "
                "by the command that started it; it trains on from its newest checkpoint."
            )
        elif run.state == "lost" and str(run.owner_uid) not in view.lost_more:
            yield (
                f"{run.name} has not been heard for {span(run.last_seen_s)} (last at step "
                f"{run.step}{f', {run.phase}' if run.phase else ''}): see whether the job still "
                "runs; if it does, its log says why it cannot reach the daemon; if not, `wattmesh "
                f"retire {_word_for(run, view)}` ends it."
            )
        yield from _run(run, _word_for(run, view))


def _word_for(run: RunLine, view: StatusView) -> str:
    """Give the word that means this run to a command: its name, unless another one bears it."""
    namesakes = sum(each.name == run.name for each in view.runs)
    return run.name if namesakes == 1 else run.run[:8]


def _run(run: RunLine, word: str) -> Iterator[str]:
    """What is wrong with a run that is still expected to train; `word` means it to a command."""
    if run.trouble:
        # What follows the first colon of a sentence is what to do.
        why = run.trouble.rstrip(".").replace(":", ",")
        yield (
            f"{run.name} has no new checkpoint ({why}): mend what it names; until then it trains "
            "on and is measured, and its layout is not switched."
        )
    for line in run.measured:
        if said := off_catalogue(line):
            yield (
                f"{run.name} at {line.point} {said}, by which plans are made: measure it again "
                "with `wattmesh configs profile JOB --out FILE`, and name FILE in "
                f"runs.{run.name}.catalogue for the next run."
            )
    if run.frozen.startswith("wattmesh"):
        yield (
            f"{run.name} is frozen: {run.frozen.rstrip('.')}. It trains on unswitched; read "
            f"`wattmesh why {word}`, then `wattmesh thaw {word}`."
        )
    if run.slack_s is not None and run.slack_s < 0 and run.frozen:
        yield (
            f"{run.name} will miss its deadline by {span(-run.slack_s)} where it is frozen: "
            f"`wattmesh thaw {word}` lets the deadline guard act, or move the deadline."
        )
    elif run.slack_s is not None and run.slack_s < 0:
        yield (
            f"{run.name} will miss its deadline by {span(-run.slack_s)} even at its fastest point: "
            "move the deadline, or give it a faster point or more GPUs."
        )
