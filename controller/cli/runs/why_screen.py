"""The history of one run: each decision and each switch in one sentence, newest first. Pure.

Invariant: a switch is shown with what was predicted and with what it really took, as the run
reported it; nothing is shown as done that the run did not report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import BAD, DIM, GOOD, STRONG, WARN, styled
from wattmesh.controller.marks import marked
from wattmesh.reconfig.catalogue import PAUSED
from wattmesh.reconfig.switch import how_equal
from wattmesh.reconfig.wire.messages import SWITCH_ID_KEY, SwitchMode

CONFIRMED = "confirmed"
OPEN_STYLE = STRONG
ENDED = {"confirmed": GOOD, "abandoned": DIM, "rolled_back": WARN, "failed": BAD}
UNDER_WAY = "switching"
"""Kind of the hold that only waits for a switch to end."""
SLOP = timedelta(seconds=60)
"""A switch belongs to the decision in force when its intent was written, within this tolerance."""

INDENT = " " * 29
ACTION_WORDS = {"hold": "held", "freeze": "frozen"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One thing that happened. `at` orders them; `lines` is what is shown.

    `fleeting`: a hold whose reason was gone in the next cycle.
    """

    at: datetime
    lines: tuple[Text, ...]
    fleeting: bool = False


def history_entries(
    decisions: Sequence[Mapping[str, Any]],
    switches: Sequence[Mapping[str, Any]],
    transitions: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({}),
) -> list[TimelineEntry]:
    """Put decisions and switches into one history, newest first; `transitions`: of each by its id.

    A decision that became a switch appears only as that switch.
    """
    days = {_at(each, "first_at").date() for each in decisions}
    days |= {_at(each, "created_at").date() for each in switches}
    dated = len(days) > 1
    told = [each for each in decisions if not _became_switch(each, switches)]
    entries = [_decision(each, dated=dated) for each in told]
    entries += [_switch(each, transitions.get(each[SWITCH_ID_KEY], ()), dated) for each in switches]
    return sorted(entries, key=lambda each: each.at, reverse=True)


def over(run: Mapping[str, Any]) -> list[Text]:
    """Say that the run has ended, and how; nothing while it trains."""
    said = run.get("ended") or ("lost" if run["state"] == "lost" else "")
    if not said:
        return []
    heard = f", last heard {quantities.duration(run['last_seen_s'])} ago at step {run['step']:,}"
    return [styled((f"{run['name']}: ", STRONG), f"{said}{heard}")]


def experts(events: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Say what the run was told of its experts' costs, newest first."""
    return [
        styled((f"{each['at'][:16].replace('T', ' ')}  ", DIM), each["detail"].partition("): ")[2])
        for each in events
    ]


def measured(run: Mapping[str, Any]) -> list[Text]:
    """Say how far each point that was measured lately is from its catalogue."""
    lines = []
    for each in run.get("measured", ()):
        said = f"{formats.percent(each['speed_ratio'])} of its catalogue's speed"
        if each["power_ratio"] is not None:
            power = marked(formats.percent(each["power_ratio"]), each["flags"])
            said += f", {power} of its watts"
        off = each["speed_alarm"] or each["power_alarm"]
        over_s = quantities.duration(each["measured_s"])
        told = f"{said}, over {over_s} of steady training"
        lines.append(
            styled((f"{run['name']} at {each['point']}: ", DIM), (told, WARN if off else DIM))
        )
    return lines


def basis(rows: Sequence[Mapping[str, Any]], baseline: str = "") -> list[Text]:
    """Say which signals, boundary and baseline the grams in a history refer to."""
    signals = sorted({each["signal"] for each in rows if each["signal"]})
    boundaries = sorted({each["boundary"] for each in rows})
    if not rows:
        return []
    said = [f"grams expected in {' or '.join(signals) or 'no known signal'}", *boundaries]
    said.append("what a switch saves is against staying")
    if baseline:
        said.append(f"submitted at {baseline}, the baseline of `wattmesh budget`")
    return [styled((" · ".join(said), DIM))]


def brief(entries: Sequence[TimelineEntry]) -> tuple[list[TimelineEntry], int]:
    """Leave out fleeting holds, except the newest entry; give the rest and the number left out."""
    kept = [each for index, each in enumerate(entries) if index == 0 or not each.fleeting]
    return kept, len(entries) - len(kept)


def around(entries: Sequence[TimelineEntry], at: datetime) -> list[TimelineEntry]:
    """Keep what held at `at` and what came right before it."""
    before = [each for each in entries if each.at <= at]
    return before[:2]


def _at(row: Mapping[str, Any], key: str) -> datetime:
    return datetime.fromisoformat(row[key])


def clause(reason: str) -> str:
    """Remove what the columns say already: `staying at A (dp2 tp2 on 4 GPUs): `."""
    begins = reason.startswith(("staying at ", "switching from "))
    _, parted, rest = reason.partition("): ")
    return rest if begins and parted else reason


def _became_switch(decision: Mapping[str, Any], switches: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether a switch already shows this decision: it carries it out, or was under way."""
    first, last = _at(decision, "first_at") - SLOP, _at(decision, "last_at") + SLOP
    near = [each for each in switches if first <= _at(each, "created_at") <= last]
    if decision["kind"] == UNDER_WAY:
        return bool(near)
    ordered = [each for each in near if each["to_point"] == decision["target"]]
    return decision["action"] in ("switch", "suspend", "resume") and bool(ordered)


def _decision(row: Mapping[str, Any], *, dated: bool) -> TimelineEntry:
    """One decision that was not a switch: one line."""
    at, last = _at(row, "first_at"), _at(row, "last_at")
    acts = row["mode"] == "act" or row["action"] == "hold"
    word = ACTION_WORDS.get(row["action"], row["action"]) if acts else "would"
    stood = last - at
    times = f"  (stood {quantities.duration(stood.total_seconds())})" if row["count"] > 1 else ""
    line = styled(
        (_time(at, dated=dated), DIM),
        "  ",
        (f"{word:<7}", "" if row["action"] == "hold" else WARN),
        f" {_move(row['current'], row['target'])}  {clause(row['reason'])}",
        (times, DIM),
    )
    return TimelineEntry(
        at=at, lines=(line,), fleeting=row["action"] == "hold" and row["count"] == 1
    )


def _switch(
    row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], dated: bool
) -> TimelineEntry:
    at = _at(row, "created_at")
    head = styled(
        (_time(at, dated=dated), DIM),
        "  ",
        (f"{_act(row):<7}", STRONG),
        f" {_move(row['from_point'], row['to_point'])}  {clause(row['reason'])}",
    )
    return TimelineEntry(at=at, lines=(head, styled(INDENT, *_outcome(row, steps))))


def _act(row: Mapping[str, Any]) -> str:
    """Name what was ordered: sleep and waking go from and to no point."""
    if row["to_point"] == PAUSED:
        return "suspend"
    return "resume" if row["from_point"] == PAUSED else "switch"


def _outcome(
    row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
) -> list[str | tuple[str, str]]:
    state = row["state"]
    parts: list[str | tuple[str, str]] = [(state.replace("_", " "), ENDED.get(state, OPEN_STYLE))]
    took_s = row["evidence"].get("total_s")
    if took_s is not None:
        parts.append(f" in {quantities.duration(took_s)} ({_in_place_or_by_restart(row, steps)})")
    difference = probe_difference(row["evidence"])
    if difference is not None:
        parts.append(f", probe loss {how_equal(difference)}")
    parts += [f", {each}" for each in _predicted(row)]
    if row["detail"] and state != CONFIRMED:
        parts.append(f": {row['detail']}")
    return parts


def _in_place_or_by_restart(row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> str:
    ordered = row["order"]["mode"].replace("_", " ")
    stopped = next((each for each in steps if each["state"] == "stopping"), None)
    if stopped is None or ordered == "restart":
        return str(ordered)
    if ordered == SwitchMode.SUSPEND:
        return stopped["detail"] or str(ordered)
    why = f": {stopped['detail']}" if stopped["detail"] else ""
    return f"restart, ordered {ordered}{why}"


def _predicted(row: Mapping[str, Any]) -> list[str]:
    said = []
    if row["predicted_ug"] is not None:
        said.append(f"expected to save {formats.micrograms(row['predicted_ug'], row['flags'])}")
    if row["switch_cost_ug"] is not None:
        said.append(f"to cost {formats.micrograms(row['switch_cost_ug'], row['flags'])}")
    return said


def probe_difference(evidence: Mapping[str, Any]) -> float | None:
    """Give |after - before| / |before| of the probe loss; None when it was not reported."""
    before, after = evidence.get("probe_before"), evidence.get("probe_after")
    if not isinstance(before, int | float) or not isinstance(after, int | float) or not before:
        return None
    return abs(after - before) / abs(before)


def _move(current: str, target: str) -> str:
    """Write `A -> C`, padded so that reasons line up."""
    return f"{current or '?'} -> {target or '?'}".ljust(10)


def _time(at: datetime, *, dated: bool) -> str:
    """Write the time of an entry with seconds, and its day when the history spans several."""
    return at.strftime("%d %b %H:%M:%S" if dated else "%H:%M:%S")
