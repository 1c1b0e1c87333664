"""What is still known when the daemon does not answer: its journal, read without it.

Invariant: it only reads, it never raises, and everything it shows says how old it is.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.text import Text

from wattmesh.controller import marks
from wattmesh.controller.cli import words
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.journal.decisions import DecisionRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs import RunRow
from wattmesh.controller.settings import read as settings
from wattmesh.errors import WattmeshError

COLUMNS = (
    Column(title="RUN"),
    Column(title="STEP", right=True),
    Column(title="LAYOUT"),
    Column(title="LAST REPORT"),
    Column(title="STATE THEN"),
)


def last_known(config: Path) -> list[Text | str]:
    """Say what the journal named in `config` tells; nothing when it cannot be read."""
    try:
        url = settings.load(config).journal.url
        journal = Journal.open(url)
        try:
            return _told(journal, datetime.now(UTC))
        finally:
            journal.close()
    except WattmeshError as error:
        why = "; ".join(" ".join(line.split()) for line in str(error).splitlines())
        return [styled((f"The journal cannot be read either: {why}.", DIM))]


def _told(journal: Journal, now: datetime) -> list[Text | str]:
    """Read leader, runs and the newest decisions."""
    leader = journal.leadership.current()
    runs = journal.runs.all(now)
    head = "The daemon does not answer; this is what its journal says. Training does not need it."
    lines: list[Text | str] = [styled((head, WARN))]
    if leader is not None:
        ago = words.duration((now - leader.expires_at).total_seconds())
        held = f"its lease ended {ago} ago" if leader.expired else "its lease still holds"
        lines.append(f"led by {leader.holder}, {held}")
    if not runs:
        return [*lines, "no run has ever registered"]
    lines += ["", *table(COLUMNS, [_row(run, now) for run in runs])]
    newest = [journal.decisions.list(run=run.run, limit=1) for run in runs]
    told = [
        styled((f"{run.name}: ", STRONG), f"{_reason(rows[0], run)} ({_ago(rows[0].last_at, now)})")
        for run, rows in zip(runs, newest, strict=True)
        if rows
    ]
    return [*lines, "", *told]


def _reason(row: DecisionRow, run: RunRow) -> str:
    """The reason of a decision, with what its grams are."""
    return marks.sentence(row.reason, marks.expected_flags(run.catalogue, ""))


def _row(run: RunRow, now: datetime) -> Sequence[str | Text]:
    """One run's cells."""
    said = "stopped" if run.stopped else run.phase
    state = "finished" if run.state == "finished" else said
    frozen = f", frozen: {run.frozen}" if run.frozen else ""
    return (
        Text(run.name, style=STRONG),
        words.count(run.step),
        words.UNKNOWN if run.observed else str(run.layout),
        _ago(run.last_seen_at, now),
        f"{state}{frozen}",
    )


def _ago(at: datetime, now: datetime) -> str:
    """How long ago something was."""
    return f"{words.duration((now - at).total_seconds())} ago"
