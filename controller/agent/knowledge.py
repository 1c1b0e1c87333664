"""What the controller has told this agent: who may own GPUs, where slots end, what to set.

Invariant: holders and slots are kept in the outbox, so an agent that starts while the controller
is away goes on with the last known ones; without any it waits `PATIENCE_S`, then attributes no
process to a run.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from wattmesh.controller.agent.outbox import AgentOutbox
from wattmesh.errors import InputInvalid
from wattmesh.telemetry.desired import Desired
from wattmesh.telemetry.energy.attribution import Holder
from wattmesh.telemetry.energy.ledger import SlotGrid

log = logging.getLogger(__name__)

PATIENCE_S = 60.0

HALF_HOURS = SlotGrid(origin=datetime(2020, 1, 1, tzinfo=UTC), interval_s=1800.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInstructions:
    """One answer of the controller.

    Attributes:
        known: the controller knows this node's GPUs, so `holders` is complete.
    """

    desired: Desired
    known: bool
    holders: tuple[Holder, ...]
    grid: SlotGrid

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "AgentInstructions":
        """Read the controller's answer.

        Raises:
            InputInvalid: any part of it is not understood.
        """
        listed, grid = data.get("holders"), data.get("grid")
        if not isinstance(listed, list) or not isinstance(grid, Mapping):
            raise InputInvalid("the controller's answer has no holders, or no grid of slots")
        return cls(
            desired=Desired.from_json(data),
            known=data.get("known") is True,
            holders=tuple(map(Holder.from_json, listed)),
            grid=read_grid(grid),
        )


class Knowledge:
    """The newest answer; one thread writes, others read."""

    def __init__(self, outbox: AgentOutbox, started_s: float) -> None:
        """Begin with what the outbox has kept."""
        self._outbox = outbox
        self._started_s = started_s
        self.grid = HALF_HOURS
        self._holders: tuple[Holder, ...] | None = None
        self._kept = outbox.fact("told")
        if self._kept:
            try:
                told = json.loads(self._kept)
                self._holders = tuple(map(Holder.from_json, told["holders"]))
                self.grid = read_grid(told["grid"])
            except (InputInvalid, ValueError, KeyError, TypeError) as error:
                log.warning("what the controller said before is not readable: %s", error)

    def hear(self, instructions: AgentInstructions) -> None:
        """Take an answer, and keep it in the outbox.

        Raises:
            JournalUnavailable: it could not be kept; it holds only for this process.
        """
        self.grid = instructions.grid
        if not instructions.known:
            return
        self._holders = instructions.holders
        grid = write_grid(instructions.grid)
        holders = [each.to_json() for each in instructions.holders]
        text = json.dumps({"holders": holders, "grid": grid})
        if text != self._kept:
            self._outbox.keep("told", text)
            self._kept = text

    def holders(self, monotonic_s: float) -> tuple[Holder, ...] | None:
        """Give who may own GPUs; None while the controller may still say it."""
        if self._holders is None and monotonic_s - self._started_s > PATIENCE_S:
            return ()
        return self._holders


def write_grid(grid: SlotGrid) -> dict[str, Any]:
    """Write a slot grid as agents receive it."""
    return {
        "origin": grid.origin.isoformat(),
        "interval_s": grid.interval_s,
        "timezone": grid.timezone,
    }


def read_grid(data: Mapping[str, Any]) -> SlotGrid:
    """Read a slot grid.

    Older controllers send no time zone: UTC is taken, as for a zone that this machine does not
    know. The controller then splits a slot with midnight in it over both days, by time.

    Raises:
        InputInvalid: the data is not a slot grid.
    """
    interval_s = data.get("interval_s")
    try:
        origin = datetime.fromisoformat(str(data.get("origin")))
    except ValueError:
        raise InputInvalid(f"grid: origin {data.get('origin')!r} is no time") from None
    usable = isinstance(interval_s, int | float) and 0 < interval_s <= 86_400
    if not usable or origin.tzinfo is None:
        raise InputInvalid(f"grid: {dict(data)!r} is none"[:300])
    return SlotGrid(
        origin=origin,
        interval_s=float(interval_s),  # type: ignore[arg-type]
        timezone=_known_zone(data.get("timezone")),
    )


def _known_zone(name: object) -> str:
    """Give a zone's name if this machine knows it, else UTC."""
    try:
        return ZoneInfo(name).key if isinstance(name, str) else "UTC"
    except (ZoneInfoNotFoundError, ValueError, OSError):
        log.warning("this machine does not know the time zone %r of the site", name)
        return "UTC"
