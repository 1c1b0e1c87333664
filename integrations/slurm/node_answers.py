"""Reads what Slurm prints of nodes, reservations and running jobs, into what is free when. Pure.

A node that is down or drained is out of service until somebody says otherwise; one that saves power
is not, since Slurm wakes it. Invariant: a line or a reservation that is not understood takes no
node away.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

from wattmesh.integrations.slurm.answers import SEPARATOR, whole_number
from wattmesh.reconfig.launcher.nodes_ahead import (
    EVER,
    FOREVER,
    UNLIMITED,
    NodeAhead,
    NodesAhead,
    TakenSpan,
)

NODE_FIELDS = ("%N", "%T", "%X", "%Y", "%a")
"""Name, state, sockets, cores of a socket, and whether the partition is up."""

BUSY_FIELDS = ("%A", "%e", "%N")
"""A job that runs, when it ends at the latest, and its nodes."""

OUT_OF_SERVICE = frozenset(
    {"down", "drained", "draining", "drain", "fail", "failing", "error", "inval"}
)
"""Not "unknown": so are all nodes for a moment when the controller has been started."""

CLOSED_PARTITION = frozenset({"down", "inact"})
"""States of a partition whose jobs get no nodes; one that drains still starts those it has."""

MOST_NODES = 100_000
"""How many names a list of nodes may stand for."""

_FLAGS = "*~#!%$@^-+"
"""What sinfo puts behind a state."""

_BRACKETS = re.compile(r"\[([^\]]*)\]")


def nodes_ahead(
    now: datetime, lasts: timedelta, nodes: str, reservations: str, busy: str, *, mine: int = 0
) -> NodesAhead:
    """Read three answers.

    Args:
        now: when they were given.
        lasts: how long a launch may take at least.
        nodes: `sinfo --Node` in `NODE_FIELDS`, of the partitions that a launch may go to.
        reservations: `scontrol show reservation --oneliner`, times in seconds since 1970.
        busy: `squeue` in `BUSY_FIELDS`, of all users' jobs that are shown and have nodes.
        mine: the job that ends before the launch begins; 0: none does.
    """
    found, cores = _nodes(nodes)
    for held, span in _reserved(reservations, cores):
        for name in held & found.keys():
            found[name] = replace(found[name], closed=(*found[name].closed, span))
    for name, until in _busy(busy, mine).items():
        node = found.get(name)
        if node is not None and node.busy_until is not None:
            found[name] = replace(node, busy_until=until)
    return NodesAhead(now=now, lasts=lasts, nodes=tuple(found.values()))


def seconds(limit: str) -> timedelta | None:
    """Read a time limit as Slurm writes it, "1-02:03:04" or "10:00"; None: none is named."""
    text = limit.strip()
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return UNLIMITED
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(each.isascii() and each.isdecimal() for each in (*parts, days if dash else "0")):
        return None
    if len(parts) > 3 or len(text) > 16:
        return None
    # "10" are minutes, "10:00" minutes and seconds; after days hours stand first.
    wide = [0] * (3 - len(parts))
    numbers = [int(each) for each in parts]
    whole = [*numbers, *wide] if dash else [*wide, *numbers]
    if not dash and len(parts) == 1:
        whole = [0, numbers[0], 0]
    hours, minutes, rest = whole
    limit_s = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest
    return timedelta(seconds=min(limit_s, int(UNLIMITED.total_seconds())))


def names(hostlist: str) -> frozenset[str]:
    """Return the nodes that a list stands for, as "n[1-3,07],r[1-2]n[1-2]"; empty: unreadable."""
    found: set[str] = set()
    for part in re.split(r",(?![^\[]*\])", hostlist.strip()):
        pieces = _BRACKETS.split(part)
        choices = [
            [piece] if place % 2 == 0 else list(_numbers(piece))
            for place, piece in enumerate(pieces)
        ]
        count = 1
        for each in choices:
            count *= len(each)
        if len(found) + count > MOST_NODES:
            return frozenset()
        found.update("".join(each) for each in product(*choices))
    return frozenset(found - {"", "(null)"})


def _numbers(ranges: str) -> Iterator[str]:
    for each in ranges.split(","):
        low, dash, high = each.partition("-")
        if not dash:
            yield low
            continue
        first, last = whole_number(low), whole_number(high)
        if first is not None and last is not None and last - first <= MOST_NODES:
            yield from (f"{number:0{len(low)}d}" for number in range(first, last + 1))


def _nodes(answer: str) -> tuple[dict[str, NodeAhead], dict[str, int]]:
    """Read each node once, and how many cores it has; 0: not known."""
    found: dict[str, NodeAhead] = {}
    cores: dict[str, int] = {}
    for line in answer.splitlines():
        fields = line.split(SEPARATOR)
        if len(fields) != len(NODE_FIELDS) or not fields[0].strip():
            continue
        name, state = fields[0].strip(), fields[1].strip().lower().rstrip(_FLAGS)
        closed = state in OUT_OF_SERVICE or fields[4].strip().lower() in CLOSED_PARTITION
        why = state if state in OUT_OF_SERVICE else f"in a partition that is {fields[4].strip()}"
        out = TakenSpan(begins_at=EVER, ends_at=FOREVER, why=why[:64])
        if closed and name in found:
            continue  # in another partition it may be open
        free = state in ("idle", "planned", "powered_down", "powering_down", "reserved", "maint")
        found[name] = NodeAhead(
            name=name,
            closed=(out,) if closed else (),
            busy_until=None if free else FOREVER,
        )
        cores[name] = (whole_number(fields[2]) or 0) * (whole_number(fields[3]) or 0)
    return found, cores


def _reserved(answer: str, cores: Mapping[str, int]) -> Iterator[tuple[frozenset[str], TakenSpan]]:
    """Read the reservations that take whole nodes from jobs that do not name them."""
    for line in answer.splitlines():
        # The first of a name counts: newer versions end the line with a comment in free words.
        fields = dict(each.partition("=")[::2] for each in reversed(line.split()))
        begins, ends = _moment(fields.get("StartTime", "")), _moment(fields.get("EndTime", ""))
        flags = set(fields.get("Flags", "").split(","))
        loose = flags & {"TIME_FLOAT", "MAGNETIC"} or _says(fields, "MaxStartDelay")
        held = names(fields.get("Nodes", ""))
        whole = sum(cores.get(each, 0) for each in held)
        part = 0 < (whole_number(fields.get("CoreCnt", "")) or 0) < whole
        if begins is None or ends is None or begins >= ends or loose or part or not held:
            continue
        name = fields.get("ReservationName", "")[:64]
        yield held, TakenSpan(begins_at=begins, ends_at=ends, why=f"in reservation {name}")


def _says(fields: Mapping[str, str], name: str) -> bool:
    return fields.get(name, "(null)") not in ("(null)", "", "00:00:00", "n/a")


def _busy(answer: str, mine: int) -> dict[str, datetime | None]:
    """Read until when each node is busy at the latest; None: only the job `mine` is on it."""
    found: dict[str, datetime | None] = {}
    for line in answer.splitlines():
        fields = line.split(SEPARATOR)
        if len(fields) != len(BUSY_FIELDS):
            continue
        own, end = fields[0].strip() == str(mine), _moment(fields[1]) or FOREVER
        for name in names(fields[2]):
            before = found.get(name)
            found[name] = before if own else max(end, before or end)
    return found


def _moment(text: str) -> datetime | None:
    seconds_s = whole_number(text)
    return None if seconds_s is None else datetime.fromtimestamp(seconds_s, UTC)


def least_limit(options: Sequence[str], least: timedelta | None) -> timedelta:
    """Return how long a job may take at least, by `sbatch`'s words; 0 where that is not known.

    `least`: what the job that is followed may be shortened to; None: it may not.
    """
    if any(each == "--time" or each.startswith(("-t", "--time-min")) for each in options):
        return timedelta()
    named = [each.partition("=")[2] for each in options if each.startswith("--time=")]
    limit = seconds(named[-1]) if named else UNLIMITED
    if limit is None:
        return timedelta()
    return min(limit, least) if least else limit


def partitions(options: Iterable[str]) -> str:
    """Return the partitions that `sbatch`'s words name, "" where they cannot be told."""
    words = list(options)
    if any(each.startswith("-p") for each in words):
        return ""
    return next((each[12:] for each in reversed(words) if each.startswith("--partition=")), "")
