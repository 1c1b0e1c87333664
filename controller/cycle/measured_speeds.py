"""How fast each run trains at each of its points, measured and kept in the journal.

The mean that the hook reports for its last steps is not used, because it may not contain a
checkpoint. What counts is tokens over time between two turns while a run stays at one point,
including boundaries and pauses (`wattmesh.policies.speed.watch`).

Invariant: a measurement holds only for the machines on which it was made. A launch that we did not
order, or on another host, starts without measurements.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache

from wattmesh.controller.cycle.isolation import Isolation
from wattmesh.controller.journal.database.values import to_text
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.policies.decision import Observation, RunView
from wattmesh.policies.run_context import in_flight_s
from wattmesh.policies.speed import MeasuredSpeed, SpeedWatch, Stay, watch

BETWEEN = ("ordered", "announced")
"""States of an open switch in which the run still trains at its old point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """The measured speeds of a run; `attempt`, `host`: the launch that they belong to."""

    attempt: int = 0
    host: str = ""
    watched: SpeedWatch = field(default_factory=SpeedWatch)


def read(row: RunRow) -> Paces:
    """Return the measurements that hold for the present launch."""
    kept = _parsed(row.speeds)
    if kept.attempt == row.attempt and kept.host == row.host:
        return kept
    # A launch that we ordered, on the same host, has the same machines; only its stay is new.
    ours = row.attempt == kept.attempt + 1 and row.outage_from is None
    same = ours and kept.host == row.host
    watched = replace(kept.watched, stay=None) if same else SpeedWatch()
    return Paces(attempt=row.attempt, host=row.host, watched=watched)


def note_speeds(
    journal: Journal,
    rows: Iterable[RunRow],
    seen: Observation,
    *,
    epoch: int,
    isolation: Isolation,
) -> None:
    """Update the measured speed of every live run, and record what has changed.

    Args:
        journal: where it is recorded.
        rows: the live runs.
        seen: this turn's observation.
        epoch: of the leader.
        isolation: counts failures that concern one run only.

    Raises:
        Fenced: another daemon leads by now; nothing was written.
    """
    live = {each.run: each for each in seen.runs if each.live and not each.unreadable}
    changed: dict[str, str] = {}
    for row in rows:
        if row.run not in live:
            continue
        with isolation.alone(row.run, "measuring its speed"):
            before = read(row)
            after = replace(before, watched=_watched(before.watched, live[row.run], seen))
            if after != _parsed(row.speeds):
                changed[row.run] = to_text(asdict(after))
    if changed:
        journal.runs.note_speeds(changed, epoch=epoch)


def _watched(before: SpeedWatch, run: RunView, seen: Observation) -> SpeedWatch:
    """Measure one run, if it trains at a known point and no change is in flight."""
    catalogue, current, switch = run.catalogue, run.current, run.open_switch
    if (
        catalogue is None
        or current is None
        or not run.tokens_per_s
        or (switch is not None and switch.state not in BETWEEN)
        or in_flight_s(seen, run, catalogue) > 0.0
    ):
        return before if before.stay is None else replace(before, stay=None)
    return watch(
        before,
        point=current.id,
        at_s=seen.now.timestamp(),
        tokens=float(run.tokens),
        step=run.step,
        least_steps=run.boundary_every,
        margin=seen.policy.guard_margin,
    )


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Paces:
    if not text:
        return Paces()
    data = json.loads(text)
    watched = data["watched"]
    return Paces(
        attempt=data["attempt"],
        host=data["host"],
        watched=SpeedWatch(
            speeds=tuple(MeasuredSpeed(**each) for each in watched["speeds"]),
            stay=Stay(**watched["stay"]) if watched["stay"] else None,
        ),
    )
