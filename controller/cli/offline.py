"""What is still known when the daemon does not answer: its journal, read without it.

Invariant: it only reads, it never raises, and everything it shows says how old it is.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller import marks
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.journal.decisions import DecisionRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_row import DONE
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.settings import read as settings
from wattmesh.controller.settings.journal_address import journal_url
from wattmesh.controller.status.status import FINISHED_SHOWN, shown
from wattmesh.errors import WattmeshError

COLUMNS = (
    Column(title="RUN"),
    Column(title="STEP", right=True),
    Column(title="LAYOUT"),
    Column(title="LAST REPORT"),
    Column(title="STATE THEN"),
)


def last_known(config: Path, why: str) -> dict[str, Any]:
    """Tell what the journal named in `config` knows, as `status --json` prints it.

    Args:
        config: the daemon's settings.
        why: why the daemon does not answer.

    Returns:
        `at`; `daemon`: why it does not answer; `settings`: where they are; `journal`: why that
        cannot be read, "" where it was; `leader`, `lease_ended_s`: who led, and since when no more;
        `frozen`: why all runs are frozen, "" if they are not; `runs` as they last were, None where
        they are not known; `runs_left_out`: how many silent ones are not among them.
    """
    now = datetime.now(UTC)
    known: dict[str, Any] = {
        "at": now.isoformat(),
        "daemon": why,
        "settings": str(config),
        "journal": "",
        "leader": "",
        "lease_ended_s": None,
        "frozen": "",
        "runs": None,
        "runs_left_out": 0,
    }
    try:
        journal = Journal.open(journal_url(settings.load(config, by_a_person=True)))
        try:
            return known | _read(journal, now)
        finally:
            journal.close()
    except WattmeshError as error:
        told = "; ".join(" ".join(line.split()) for line in str(error).splitlines())
        return known | {"journal": f"{told.rstrip('.')}."}


def screen_of(known: Mapping[str, Any]) -> list[Text | str]:
    """Lay out what is known."""
    if known["journal"]:
        return [styled((f"The journal cannot be read either: {known['journal']}", DIM))]
    head = "The daemon does not answer; this is what its journal says. Training does not need it."
    lines: list[Text | str] = [styled((head, WARN))]
    if known["leader"]:
        ended_s = known["lease_ended_s"]
        held = (
            "its lease still holds"
            if ended_s is None
            else f"its lease ended {quantities.duration(ended_s)} ago"
        )
        lines.append(f"led by {known['leader']}, {held}")
    runs, left_out = known["runs"], known["runs_left_out"]
    if not runs:
        return [*lines, "no run has ever registered" if not left_out else "no run of late"]
    lines += ["", *table(COLUMNS, [_row(run) for run in runs])]
    if left_out:
        more = formats.plural(left_out, "more run")
        said = f"and {more}: `wattmesh runs --offline {known['settings']}` lists them"
        lines.append(styled((said, DIM)))
    return [*lines, "", *_sentences(runs)]


def _read(journal: Journal, now: datetime) -> dict[str, Any]:
    """Read leader, runs and the newest decision about each that has not ended."""
    leader, rows = journal.leadership.current(), journal.runs.all(now)
    everything = journal.runs.frozen_all()
    told = shown(journal.runs.recent(now, now - FINISHED_SHOWN))
    ended_s = (now - leader.expires_at).total_seconds() if leader and leader.expired else None
    return {
        "leader": leader.holder if leader else "",
        "lease_ended_s": ended_s,
        "frozen": everything,
        "runs": [_run(journal, row, now, everything) for row in told],
        "runs_left_out": len(rows) - len(told),
    }


def _run(journal: Journal, row: RunRow, now: datetime, everything: str) -> dict[str, Any]:
    """Give one run; keys mean the same as in the daemon's own status.

    `everything`: why all runs are frozen; "" if they are not.
    """
    newest = () if row.ending else journal.decisions.list(run=row.run, limit=1)
    return {
        "name": row.name,
        "run": row.run,
        "step": row.step,
        "tokens": row.tokens,
        "layout": "" if row.observed else str(row.layout),
        "phase": row.phase,
        "ended": row.finish_reason if row.ending else "",
        "activity": "finished" if row.ending == DONE else row.ending or _doing(row),
        "frozen": row.frozen or everything,
        "last_seen_s": (now - row.last_seen_at).total_seconds(),
        "sentence": _reason_with_flags(newest[0], row) if newest else "",
        "decided_s": (now - newest[0].last_at).total_seconds() if newest else None,
    }


def _doing(row: RunRow) -> str:
    if row.state == "queued":
        return f"queued: {row.held_as}"
    if row.asleep_at is None or row.wakes_at is None:
        return row.phase
    return f"asleep until {row.wakes_at:%a %H:%M} UTC at the latest"


def _reason_with_flags(row: DecisionRow, run: RunRow) -> str:
    return marks.sentence(row.reason, marks.expected_flags(run.catalogue, ""))


def _row(run: Mapping[str, Any]) -> Sequence[str | Text]:
    frozen = f", frozen: {run['frozen']}" if run["frozen"] and not run["ended"] else ""
    return (
        Text(run["name"], style=STRONG),
        formats.count(run["step"]),
        run["layout"] or quantities.UNKNOWN,
        f"{quantities.duration(run['last_seen_s'])} ago",
        f"{run['activity']}{frozen}",
    )


def _sentences(runs: Sequence[Mapping[str, Any]]) -> list[Text | str]:
    """Write what was decided last, each sentence once, and how old the oldest is."""
    told = formats.together((run["name"], run["sentence"]) for run in runs)
    if not told:
        return []
    oldest_s = max(run["decided_s"] for run in runs if run["sentence"])
    head = styled((f"decided last, up to {quantities.duration(oldest_s)} ago:", DIM))
    return [head, *(styled((f"{names}: ", STRONG), text) for names, text in told)]
