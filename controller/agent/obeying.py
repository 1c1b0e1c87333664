"""Send what the controller wishes to the node's actuator, and repeat it.

It is repeated because, between two answers of the controller, an actuator may restart and a run may
start new processes. Invariant: repeating prolongs no lease. An economy lease counts from the moment
at which the controller was heard, whatever happens on this node after it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from wattmesh.controller.agent.knowledge import AgentInstructions
from wattmesh.controller.agent.loop_bodies import Newest
from wattmesh.controller.process.loops import Clock
from wattmesh.errors import Fenced, WattmeshError
from wattmesh.telemetry.actuator.wire import ProcessClaim as Owners
from wattmesh.telemetry.desired import Applied, Desired
from wattmesh.telemetry.energy.attribution import EnergyClaim, NodeView
from wattmesh.telemetry.energy.exporter import DeviceExporter
from wattmesh.telemetry.energy.node_claims import NodeClaims

log = logging.getLogger(__name__)

REPEAT_S = 2.0


class Actuator(Protocol):
    """What may set clocks and limits (`telemetry.actuator.client`)."""

    def apply(self, desired: Desired, claims: Mapping[str, Owners]) -> Applied:
        """Send everything that is wished, and the processes that belong to each holder."""
        ...

    def state(self) -> Applied:
        """Ask which settings are in force, and which controller's they are."""
        ...


class Obeying:
    """Repeats the newest wish to the actuator; one thread calls `turn`."""

    def __init__(
        self,
        actuator: Actuator,
        *,
        view: NodeClaims,
        newest: Newest,
        clock: Clock,
        exporter: DeviceExporter,
        changed: Callable[[], None],
    ) -> None:
        """Keep the parts; `changed` is called when the settings in force have changed."""
        self._actuator = actuator
        self._view = view
        self._newest = newest
        self._clock = clock
        self._exporter = exporter
        self._changed = changed

    def turn(self) -> None:
        """Send the part of the wish whose leases still run, and keep the actuator's answer."""
        instructions, heard_s = self._newest.instructions, self._newest.heard_s
        if instructions is None or heard_s is None:
            return
        wish = left(instructions.desired, self._clock.monotonic() - heard_s)
        if wish is None:
            return
        before = self._newest.applied
        try:
            applied = self._actuator.apply(
                wish, owners(instructions, self._view.view, self._newest.claims)
            )
        except Fenced as error:
            applied = self._fenced(wish, str(error))
        except WattmeshError as error:
            applied = _silent(wish, str(error))
        self._newest.applied = applied
        locks = {each.gpu_uuid: each.clock_mhz for each in applied.gpus}
        self._exporter.locked({gpu: mhz for gpu, mhz in locks.items() if mhz is not None})
        if applied != before:
            if applied.trouble and (before is None or applied.trouble != before.trouble):
                log.warning("no clock is set here: %s", applied.trouble)
            self._changed()

    def _fenced(self, wish: Desired, why: str) -> Applied:
        """Give what another controller set on the actuator; this one can set nothing there."""
        try:
            stands = self._actuator.state()
        except WattmeshError as error:
            return _silent(wish, str(error))
        kind = "epoch" if wish.journal == stands.journal else "journal"
        gpus = tuple(replace(each, settable=False, trouble=why) for each in stands.gpus)
        return replace(stands, gpus=gpus, trouble=why, fenced=kind)


def _silent(wish: Desired, why: str) -> Applied:
    """Give the answer that stands for an actuator that does not take the wish."""
    return Applied(mode="none", epoch=wish.epoch, trouble=why[:500])


def left(desired: Desired, age_s: float) -> Desired | None:
    """Give what is left of a wish heard `age_s` ago; None: nothing, so nothing is sent.

    A wish without economy leases never expires: it only says what is no longer wished.
    """
    economy = [wish for wish in desired.wishes if wish.lease_s is not None]
    if economy and all((wish.lease_s or 0.0) <= age_s for wish in economy):
        return None
    wishes = tuple(
        wish if wish.lease_s is None else replace(wish, lease_s=wish.lease_s - age_s)
        for wish in desired.wishes
        if wish.lease_s is None or wish.lease_s > age_s
    )
    return replace(desired, wishes=wishes)


def owners(
    instructions: AgentInstructions, view: NodeView | None, claims: Mapping[str, EnergyClaim]
) -> dict[str, Owners]:
    """Give each holder's user and, where this node sees them, the holder's own processes."""
    uids = {each.run: each.owner_uid for each in instructions.holders if each.owner_uid is not None}
    if view is None:
        return {run: Owners(uids=frozenset({uid})) for run, uid in uids.items()}
    pids: dict[str, set[int]] = {}
    for gpu, users in view.users.items():
        run = claims[gpu].run if gpu in claims else ""
        if run in uids and users:
            pids.setdefault(run, set()).update(process.pid for process in users)
    return {
        run: Owners(uids=frozenset({uids[run]}), pids=frozenset(each)) for run, each in pids.items()
    }
