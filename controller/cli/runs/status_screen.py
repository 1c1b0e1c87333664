"""What `wattmesh status` looks like: the answer first, then each run, then why. Pure.

Invariant: simulated and unknown values say so where they stand, and a line is red only when a
human must do something about it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import (
    DIM,
    GOOD,
    PIPE_WIDTH,
    STRONG,
    WARN,
    legend,
    styled,
    trouble,
)
from wattmesh.controller.cli.runs.one_screen import Sections, affected_first, fit
from wattmesh.controller.cli.tables import Column, fitted
from wattmesh.controller.marks import marked

DOING = {"act": "acting", "advise": "advising", "observe": "observing"}
SHOWN_FORECAST = timedelta(hours=24)
CALM = ("holding", "observed", "asleep", "queued", "finished", "retired", "expired")

RUN_COLUMNS = (
    Column(title="RUN", least=16),
    Column(title="STEP", right=True),
    Column(title="POINT", spare=1),
    Column(title="LAYOUT", spare=2),
    Column(title="GPUS", right=True),
    Column(title="CLOCK", right=True, spare=4),
    Column(title="TOKENS/S", right=True, spare=3),
    Column(title="J/TOKEN", right=True, spare=5),
    Column(title="DEADLINE"),
    Column(title="STATE"),
)


ORDER = {"live": 0, "asleep": 1, "queued": 1, "lost": 2, "finished": 3}


def live_first(runs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Put runs that train before those that are over; keep the order otherwise."""
    return sorted(runs, key=lambda each: ORDER.get(each["state"], 0))


LONGEST_STATE = 30
"""Most cells of a run's state in its row; a longer state is written whole below the table."""


def screen(
    view: Mapping[str, Any], columns: int = PIPE_WIDTH, rows: int | None = None
) -> list[Text | str]:
    """Lay out the answer of `GET /v1/status`.

    Args:
        view: the answer.
        columns: of the terminal.
        rows: of the terminal; where it is too low, what matters least is counted only. None: all.
    """
    # What is wrong with a signal stands among the troubles.
    sources = [*grid(view, tell_trouble=False), _power(view["power"])]
    cap = view.get("cap")
    if cap is not None and cap["meets"]:
        # One that cannot be kept stands among the troubles.
        whose = f" Triggered by {cap['reason']}." if cap.get("trigger") else ""
        sources.append(f"cap    {cap['sentence']}{whose}")
    sources += [f"cap    {each['sentence']}" for each in view.get("announced_caps", ())[:1]]
    table, below = _runs(view, columns)
    why, last = _sentences(view), list[Text | str]()
    if view["simulated"]:
        last += ["", styled((f"simulated: {', '.join(view['simulated'])}", WARN))]
    head, red = [_head(view)], trouble(view["trouble"])
    last += legend([*head, *red, *sources, *table, *below, *why, *last])
    parts = Sections(
        head=head,
        red=red,
        sources=sources,
        rows=table,
        below=below,
        why=why,
        last=last,
    )
    return fit(parts, columns, rows)


def _head(view: Mapping[str, Any]) -> Text:
    frozen = view["frozen"]
    doing = f"frozen ({frozen})" if frozen else DOING.get(view["mode"], view["mode"])
    if view["leading"]:
        role = f"leader on {view['host']}"
    elif view["epoch"] is not None:  # another one may lead, whatever this one knows
        role = f"led on {view['host']} until its term ran out"
    else:
        leads = f", {view['leader']} leads" if view["leader"] else ", nobody leads"
        role = f"standing by on {view['host']}{leads}"
    parts: list[str | tuple[str, str]] = [
        ("wattmesh", STRONG),
        " · ",
        (doing, WARN if frozen else GOOD),
        f" · {role} · {formats.clock(view['at'], seconds=True)} UTC · ",
        (_cycle(view["cycle"]), DIM),
    ]
    if view["stale_s"]:
        parts.append((f" · runs as last known {quantities.duration(view['stale_s'])} ago", WARN))
    return styled(*parts)


def _cycle(cycle: Mapping[str, Any]) -> str:
    if cycle["age_s"] is None:
        return "no cycle yet"
    took = quantities.duration(None if cycle["duration_ms"] is None else cycle["duration_ms"] / 1e3)
    return f"cycle {quantities.duration(cycle['age_s'])} ago, {took}"


SECOND_BEST = {"profile": "ahead: our profile", "static": "a static number"}
"""What the screen says of a signal whose forecast is not its provider's."""


def grid(view: Mapping[str, Any], *, tell_trouble: bool = True) -> list[Text | str]:
    """One line per signal: the one decided on and, where it differs, the one accounted with."""
    decision, accounting = view["carbon"], view["accounting"]
    if view.get("never_read"):
        return [styled("grid   ", ("unknown: the journal has not been read yet", WARN))]
    if decision is None and accounting is None:
        return [styled("grid   ", ("no signal is set: nothing carbon-motivated is done", WARN))]
    if decision is None or accounting is None or decision["signal"] == accounting["signal"]:
        lines = {"grid  ": decision or accounting}
    else:
        lines = {"decide": decision, "book  ": accounting}
    told = [_signal(label, line, view["at"]) for label, line in lines.items()]
    wrong = [
        styled((f"       {line['trouble']}", WARN)) for line in lines.values() if line["trouble"]
    ]
    return [*told, *(wrong if tell_trouble else [])]


def _signal(label: str, line: Mapping[str, Any], at: str) -> Text:
    known = line["g_per_kwh"] is not None
    value = f"{formats.intensity(line['g_per_kwh'])} g/kWh" if known else "unknown"
    heard = "never heard" if line["age_s"] is None else f"{quantities.duration(line['age_s'])} old"
    quality = line["quality"] if line["quality"] not in ("", "measured") else ""
    parts: list[str | tuple[str, str]] = [
        f"{label} {line['zone']}  ",
        (value, STRONG if known else WARN),
        f"  {line['kind']}·{line['factor']}  {line['provider']}, {heard}",
        f" ({quality})" if quality else "",
        (" · replayed recording" if line["simulated"] else "", WARN),
        f" · {SECOND_BEST[line['rung']]}" if line.get("rung") in SECOND_BEST else "",
    ]
    parts += [f"   {_forecast_bars(line, at)}"] if line["forecast"] else []
    return styled(*parts)


def _forecast_bars(line: Mapping[str, Any], at: str) -> str:
    now = datetime.fromisoformat(at)
    slots = [
        each
        for each in line["forecast"]
        if datetime.fromisoformat(each["start"]) < now + SHOWN_FORECAST
    ]
    if not slots:
        return ""
    span = datetime.fromisoformat(slots[-1]["end"]) - now
    text = f"next {quantities.duration(span.total_seconds())} "
    text += formats.sparkline([each["g_per_kwh"] for each in slots])
    low = line["low"]
    if low is not None:
        text += f"   low {formats.intensity(low['g_per_kwh'])} {_when(low['start'], now)}"
    return text


def _when(start: str, now: datetime) -> str:
    """Write when a slot begins: now, in a while when that is soon, else its time."""
    wait_s = (datetime.fromisoformat(start) - now).total_seconds()
    if wait_s <= 0:
        return "now"
    return f"in {quantities.duration(wait_s)}" if wait_s < 600 else f"at {formats.clock(start)}"


def _power(power: Mapping[str, Any]) -> Text:
    if not power["source"]:
        return styled("power  ", ("not read: no power source is set", WARN))
    whole = power["gpus"] == power["expected"]
    hosts_w = power.get("hosts_w")
    parts: list[str | tuple[str, str]] = [
        "power  GPUs ",
        (formats.watts(power["total_w"], power["flags"]), STRONG),
        f" + processors {formats.watts(hosts_w, power['flags'])}" if hosts_w is not None else "",
        " · ",
        (f"{power['gpus']} of {power['expected']} read", "" if whole else WARN),
        *_covered(power),
        f" · unobserved {formats.percent(power['unobserved_share'], 1)}",
        *_clocks(power),
        f" · {power['source']}, {quantities.duration(power['age_s'])} old",
    ]
    parts += [(f" · {power['trouble']}", WARN)] if power["trouble"] else []
    return styled(*parts)


def _covered(power: Mapping[str, Any]) -> list[str | tuple[str, str]]:
    """Write how many of the expected GPUs are read, where not all are."""
    covered, expected = power.get("covered", 0), power.get("to_cover", 0)
    if covered >= expected:
        return []
    seen = f" · coverage {covered} of {expected} GPUs"
    return [(f"{seen}: savings are estimated, runs on the others are held", WARN)]


def _clocks(power: Mapping[str, Any]) -> list[str | tuple[str, str]]:
    """Write how many clocks are as ordered, where there is an actuator."""
    ordered, clocks = power.get("clocks_as_ordered", 0), power.get("clocks", 0)
    if not clocks:
        return []
    said = f" · {ordered} of {clocks} clocks as ordered"
    return [(said, "" if ordered == clocks else WARN)]


def _runs(view: Mapping[str, Any], columns: int) -> tuple[list[Text | str], list[Text | str]]:
    """Lay out the table of runs, and what stands below it."""
    if view.get("never_read"):
        return [styled(("runs are not known: the journal has not been read yet", WARN))], []
    if not view["runs"]:
        return [styled(("no run is attached", DIM), ": `wattmesh.observe(...)` registers one")], []
    more = sum(view.get("lost_more", {}).values())
    said = f"and {formats.plural(more, 'more lost run')}: `wattmesh runs` lists them"
    tail = [styled((said, DIM))] if more else []
    listed = affected_first(live_first(view["runs"]), view["trouble"])
    lines, spared = fitted(RUN_COLUMNS, [_row(run) for run in listed], columns)
    if spared:
        said = f"too narrow for {', '.join(spared)}: `wattmesh status | cat` has all"
        tail.append(styled((said, DIM)))
    return [*lines], [*tail]


def _row(run: Mapping[str, Any]) -> Sequence[str | Text]:
    parked = run["world_size"] - run["ranks"]
    gpus = f"{run['ranks']}" + (f" +{parked} parked" if parked > 0 else "")
    joules = run["j_per_token"]
    return (
        Text(run["name"], style=STRONG),
        formats.count(run["step"]),
        run["point"] or quantities.UNKNOWN,
        run["layout"] or quantities.UNKNOWN,
        gpus,
        quantities.UNKNOWN if run["clock_mhz"] is None else f"{run['clock_mhz']} MHz",
        formats.rate(run["tokens_per_s"]),
        quantities.UNKNOWN if joules is None else marked(quantities.figures(joules), run["flags"]),
        _deadline(run),
        _short(_state(run)),
    )


def _short(state: Text) -> Text:
    """Cut a state to `LONGEST_STATE` cells; the whole state is written below the table."""
    if state.cell_len <= LONGEST_STATE:
        return state
    cut = state.copy()
    cut.truncate(LONGEST_STATE, overflow="ellipsis")
    return cut


def _deadline(run: Mapping[str, Any]) -> str:
    """Write the slack of the deadline guard, or the deadline while it is not known."""
    if run["deadline"] is None:
        return "none"
    if run["slack_s"] is None:
        return formats.clock(run["deadline"])
    return f"{quantities.duration(run['slack_s'])} slack"


def _state(run: Mapping[str, Any]) -> Text:
    switch, activity = run["switch"], run["activity"]
    if switch is not None and activity != "queued":
        place, of = switch["position"]
        text = f"switching to {switch['to_point']}: {switch['state']} {place} of {of}"
        return Text(text, style=STRONG)
    ago = f"last heard {quantities.duration(run['last_seen_s'])} ago"
    over = {
        "stopped": (f"stopped, {ago}", GOOD),
        "failed": (run.get("ended", ""), WARN),
        "asleep": (f"asleep until {formats.clock(run.get('wakes_at'))}", GOOD),
        "queued": (f"queued for {switch['to_point'] if switch else 'another size'}, {ago}", GOOD),
        "lost": (f"lost, {ago}{', frozen' if run['frozen'] else ''}", WARN),
    }
    if activity in over:
        text, style = over[activity]
        return Text(text, style=style)
    if run["frozen"] and not run.get("ended"):
        return Text(f"frozen: {run['frozen']}", style=WARN)
    if run["ordered_point"] and run["state"] != "finished":
        return Text(f"{activity}, ordered to {run['ordered_point']}", style=STRONG)
    return Text(activity, style=GOOD if activity in CALM else WARN)


def _waits_for(run: Mapping[str, Any]) -> str:
    """What a run that takes no step waits for; "" where it trains as usual."""
    waits_for = run.get("waits_for", "")
    return f"{waits_for[:1].upper()}{waits_for[1:]}." if waits_for else ""


def _whole_state(run: Mapping[str, Any]) -> str:
    """Write a state that its row cuts; "" where it fits, or where a red line says it already."""
    state = _state(run)
    told = run["frozen"].startswith("wattmesh") or state.cell_len <= LONGEST_STATE
    return "" if told else f"{state.plain[:1].upper()}{state.plain[1:].rstrip('.')}."


def _sentences(view: Mapping[str, Any]) -> list[Text | str]:
    """What each run waits for and its newest reason; without runs, the cycle's own sentence."""
    said = formats.together(
        (run["name"], text)
        for run in affected_first(live_first(view["runs"]), view["trouble"])
        for text in (_waits_for(run), _whole_state(run), run["sentence"])
    )
    told = [styled((f"{names}: ", STRONG), text) for names, text in said]
    return list(told) or [view["cycle"]["sentence"] or "No cycle has ended yet."]
