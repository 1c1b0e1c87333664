"""One run as the settings describe it, and as the journal has it."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from wattmesh.controller.journal.database.stored import sound
from wattmesh.controller.journal.database.values import from_us, to_layout
from wattmesh.controller.journal.runs.frozen_catalogue import from_text
from wattmesh.controller.journal.runs.liveness import LaunchStatus, Liveness
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint, Release
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import GPUS_UNKNOWN, OBSERVED, RESIZES

DONE = "done"

ENDINGS = (DONE, "stopped", "failed", "retired", "expired")
"""First words of the `finish_reason` of a run that ended; between two launches of ours it begins
with none of them ("restart").
"""

AWAY = ("asleep", "queued")
"""States of a run that has left, and whose next launch its launcher holds."""

LIVES = ("live", *AWAY)
"""States of a run that trains, or will train on without anybody's doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What the settings say about a run; frozen at its first registration.

    Attributes:
        named: the settings name it, so the name belongs to one user: `owner_uid`, or (None) whoever
            registered a run of that name first.
    """

    catalogue: Catalogue | None = None
    baseline: str = ""
    deadline: datetime | None = None
    deadline_after_s: float | None = None
    named: bool = False
    owner_uid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run as it last reported. `state`: live, asleep, queued, lost or finished.

    Attributes:
        last_seen_at: its newest sign of life, `phase`: what it was doing then. `progress_at`: its
            newest report of a step of this launch; None before the first.
        trouble: why its newest save step left no checkpoint, as it says; "" when all is well.
        released: GPUs it gave back when it was restarted on fewer of them.
        allocated: GPUs that the scheduler gave its job, used or not; (): not known.
        incarnation_at: when the newest launch registered. `outage_from`: when the launch before was
            last heard, if we did not cause its end; None if we did, or there was none.
        clock_mhz: the clock lock wished for its GPUs, since `clock_at`; None: none.
        protocol: version of its hook's protocol. `pause_share`: the share of its time to allow for
            long pauses between two steps.
        speeds: what was measured of points (`wattmesh.controller.cycle.measured_speeds`), as text.
        thawed_at: when a person last thawed it; None: nobody did.
        asleep_at: since when it sleeps to save carbon; None: it does not. `wakes_at`: when its next
            launch begins at the latest; of a run that waits for another size (`asleep_at` None):
            from when on the old size may begin. `held_as`: what holds that launch, as people find
            it; "": nothing.
    """

    run: str
    name: str
    owner_uid: int
    state: str
    incarnation: str
    attempt: int
    layout: Layout
    ranks: tuple[int, ...]
    world_size: int
    gpus: tuple[str, ...]
    step: int
    samples: int
    tokens: int
    tokens_total: int
    tokens_per_s: float | None
    loss: float | None
    boundary_every: int
    checkpoint_step: int
    checkpoint_digest: str
    phase: str
    trouble: str
    registered_at: datetime
    last_seen_at: datetime
    incarnation_at: datetime
    outage_from: datetime | None
    finished_at: datetime | None
    finish_reason: str
    catalogue: Catalogue | None
    baseline: str
    best_single: str
    deadline: datetime | None
    frozen: str
    ordered_point: str
    ordered_reason: str
    clock_mhz: int | None
    clock_at: datetime | None
    capabilities: tuple[str, ...]
    host: str
    pid: int
    scheduler_key: str
    released: tuple[str, ...] = ()
    protocol: int = 1
    progress_at: datetime | None = None
    pause_share: float = 0.0
    speeds: str = ""
    thawed_at: datetime | None = None
    asleep_at: datetime | None = None
    wakes_at: datetime | None = None
    held_as: str = ""
    allocated: tuple[str, ...] = ()

    @property
    def point(self) -> OperatingPoint | None:
        """The catalogue's point that it is at, by its layout and its GPUs' wished clock lock."""
        return self.catalogue.find(self.layout, self.clock_mhz) if self.catalogue else None

    def resizes_to(self, target: OperatingPoint) -> bool:
        """Return whether it would go to a point as a launch of another number of ranks."""
        gives_back = self.catalogue is not None and self.catalogue.release is Release.RELEASED
        other = target.layout.world_size != self.world_size
        return gives_back and RESIZES in self.capabilities and other

    @property
    def gpus_used(self) -> frozenset[str]:
        """The GPUs that its ranks use, as far as it named them; parked ranks use none."""
        ranks = set(self.ranks)
        return frozenset(gpu for rank, gpu in enumerate(self.gpus) if gpu and rank in ranks)

    @property
    def sleeps_in_job(self) -> bool:
        """Whether the scheduler's job lives on while the run sleeps, and so has its GPUs.

        A launcher that holds launches of other sizes holds them as other jobs, so its own one ends.
        """
        return bool(self.allocated) and RESIZES not in self.capabilities

    @property
    def observed(self) -> bool:
        """Whether it is only measured and accounted, so that its layout is unknown."""
        return OBSERVED in self.capabilities

    @property
    def computes_with(self) -> Fingerprint:
        """What it computes with, as far as it says."""
        return Fingerprint.from_capabilities(self.capabilities)

    @property
    def gpus_unknown(self) -> str:
        """Why it did not name all its GPUs, as it says; "" where it says nothing."""
        said = (each for each in self.capabilities if each.startswith(GPUS_UNKNOWN))
        return next(said, "").removeprefix(GPUS_UNKNOWN)

    @property
    def ending(self) -> str:
        """How it ended, in one word of `ENDINGS`; "" while it has not.

        After `stopped` and `failed`, which a launch reports when it leaves, another launch may go
        on from there.
        """
        return next((each for each in ENDINGS if self.finish_reason.startswith(each)), "")

    @property
    def step_s(self) -> float | None:
        """Usual seconds of a step, from its own reports; None until it has trained a few."""
        if not self.tokens_per_s or not self.step or not self.tokens:
            return None
        return self.tokens / self.step / self.tokens_per_s


def read_run(row: Row[Any], liveness: Liveness, now: datetime) -> RunRow:
    """Make the `RunRow` of a row of `runs` as of `now`.

    Raises:
        WattmeshError, ValueError, TypeError, OverflowError: an older version stored bad values.
    """
    known = LaunchStatus.of(row)
    last_seen_at, phase = liveness.last_heard(known)
    values = sound(
        {each: getattr(row, each) for each in RunRow.__dataclass_fields__ if hasattr(row, each)}
    )
    values |= {
        "state": liveness.state(known, now),
        "phase": phase,
        "layout": to_layout(row.layout),
        "ranks": tuple(json.loads(row.ranks)),
        "gpus": tuple(json.loads(row.gpus)),
        "released": tuple(json.loads(row.released)),
        "allocated": tuple(json.loads(row.allocated)),
        "capabilities": tuple(json.loads(row.capabilities)),
        "registered_at": from_us(row.registered_at),
        "last_seen_at": last_seen_at,
        "progress_at": from_us(row.progress_at),
        "incarnation_at": from_us(row.incarnation_at),
        "outage_from": from_us(row.outage_from),
        "finished_at": from_us(row.finished_at),
        "clock_at": from_us(row.clock_at),
        "thawed_at": from_us(row.thawed_at),
        "asleep_at": from_us(row.asleep_at),
        "wakes_at": from_us(row.wakes_at),
        "deadline": from_us(row.deadline),
        "catalogue": from_text(row.catalogue) if row.catalogue else None,
    }
    return RunRow(**values)
