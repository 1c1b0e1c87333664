"""What each loop of an agent does in one turn: read, deliver, hear.

Invariant: each may be killed at any instruction and done again; what matters is in the outbox.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import wattmesh
from wattmesh.controller.agent.knowledge import PATIENCE_S, Knowledge, Told
from wattmesh.controller.agent.link import Link
from wattmesh.controller.agent.outbox import Outbox
from wattmesh.controller.loops import Clock
from wattmesh.errors import JournalUnavailable, SourceUnavailable, WattmeshError
from wattmesh.telemetry.actuator.wire import Claim as Owners
from wattmesh.telemetry.attribution import Claim
from wattmesh.telemetry.delivery import Report, baseline, live
from wattmesh.telemetry.desired import Applied, Desired
from wattmesh.telemetry.exporter import DeviceExporter
from wattmesh.telemetry.node_claims import NodeClaims
from wattmesh.telemetry.sampler import Sample, Sampler

log = logging.getLogger(__name__)

DELIVERY_LIMIT_S = 20.0
MOST_BATCHES = 20
"""Delivered in one turn, after an outage; the rest follows in the next."""

WAIT_S = 15.0
"""How long the controller may take to say something new; well below a third of any lease."""

ANSWER_LIMIT_S = 10.0


class Actuator(Protocol):
    """What may set clocks and limits (`telemetry.actuator.client`)."""

    def apply(self, desired: Desired, claims: Mapping[str, Owners]) -> Applied:
        """Say everything that is wished, and whose processes the holders' are."""
        ...


@dataclass(slots=True)
class Newest:
    """The newest facts of an agent's loops; each field is replaced whole, by one thread."""

    sample: Sample
    claims: Mapping[str, Claim]
    applied: Applied | None = None
    heard_s: float | None = None
    delivered_s: float | None = None


class Reading:
    """Read every device, and keep what it drew."""

    def __init__(
        self,
        sampler: Sampler,
        node: NodeClaims,
        knowledge: Knowledge,
        *,
        exporter: DeviceExporter,
        newest: Newest,
        clock: Clock,
        flush_s: float,
    ) -> None:
        """Take the parts; `flush_s` is how often they are written to the outbox."""
        self._sampler = sampler
        self._node = node
        self._knowledge = knowledge
        self._exporter = exporter
        self._newest = newest
        self._clock = clock
        self._flush_s = flush_s
        self._flushed_s = clock.monotonic()
        self._grid = knowledge.grid

    def turn(self) -> None:
        """Read once; write when it is time.

        Raises:
            JournalUnavailable: the outbox does not take it; it waits.
        """
        monotonic_s, newest = self._clock.monotonic(), self._newest
        if self._knowledge.grid != self._grid:
            self._grid = self._knowledge.grid
            self._sampler.regrid(self._grid)
        holders = self._knowledge.holders(monotonic_s)
        claims = None
        if holders is not None:
            claims = newest.claims = self._node.claims(holders, newest.sample.devices)
        newest.sample = self._sampler.step(self._clock.now(), monotonic_s, claims)
        self._exporter.observe(newest.sample, self._sampler.totals())
        if monotonic_s - self._flushed_s >= self._flush_s:
            self._flushed_s = monotonic_s
            self._sampler.flush()

    def close(self) -> None:
        """Write what waits, and let the source go."""
        try:
            self._sampler.flush()
        except JournalUnavailable as error:
            log.warning("the newest energy is left to the hardware counters: %s", error)
        self._sampler.close()
        self._node.close()


class Delivering:
    """Bring what was measured to the controller."""

    def __init__(
        self,
        outbox: Outbox,
        link: Link,
        newest: Newest,
        clock: Clock,
        facts: Callable[[], Mapping[str, Any]],
        *,
        node: str,
    ) -> None:
        """Take the parts; `facts` gives what else there is to tell."""
        self._outbox = outbox
        self._link = link
        self._newest = newest
        self._clock = clock
        self._facts = facts
        self._target = f"/v1/agents/{quote(node, safe='')}/readings"
        self._started_s = clock.monotonic()

    def turn(self) -> None:
        """Deliver everything that is new.

        Raises:
            SourceUnavailable: the controller did not take it; it is delivered later.
            JournalUnavailable: the outbox cannot be read.
        """
        for _ in range(MOST_BATCHES):
            if not self._once():
                break
        self._newest.delivered_s = self._clock.monotonic()

    def _once(self) -> bool:
        """Deliver one batch, and how the node is; say whether there may be more."""
        fresh = self._outbox.fresh
        batch = None if fresh else self._outbox.batch()
        sample = self._newest.sample
        report = Report(
            batch=batch,
            fresh=fresh,
            devices={each.gpu_uuid: live(each) for each in sample.readings},
            missing=sample.missing,
            facts=self._facts(),
        )
        body = json.dumps(report.to_json(), separators=(",", ":")).encode()
        try:
            reply = self._link.call("POST", self._target, body, limit_s=DELIVERY_LIMIT_S)
            answer = reply.json()
        except SourceUnavailable:
            self._give_up_on_old_counters(fresh)
            raise
        if reply.status != 200:
            raise SourceUnavailable(
                f"the controller did not take the delivery ({reply.status}): "
                f"{answer.get('error', 'no reason given')}"
            )
        if fresh:
            self._outbox.adopt(map(baseline, answer.get("baselines", ())))
        if batch is not None:
            self._outbox.acknowledged(batch)
        return batch is not None

    def _give_up_on_old_counters(self, fresh: bool) -> None:
        """Begin anew when the controller cannot be asked what a lost outbox had delivered."""
        if fresh and self._clock.monotonic() - self._started_s > PATIENCE_S:
            log.warning("the controller is away: this new outbox begins with the counters of now")
            self._outbox.adopt(())


class Hearing:
    """Ask the controller what is wished, and hand it to the actuator."""

    def __init__(
        self,
        link: Link,
        knowledge: Knowledge,
        actuator: Actuator,
        *,
        view: NodeClaims,
        newest: Newest,
        clock: Clock,
        exporter: DeviceExporter,
        node: str,
        changed: Callable[[], None],
    ) -> None:
        """Take the parts; `changed` is called when clocks in force have changed."""
        self._link = link
        self._knowledge = knowledge
        self._actuator = actuator
        self._view = view
        self._newest = newest
        self._clock = clock
        self._exporter = exporter
        self._target = f"/v1/agents/{quote(node, safe='')}/desired"
        self._changed = changed
        self._serial = ""

    def turn(self) -> None:
        """Wait for an answer, and obey it: leases are renewed by hearing, and by nothing else.

        Raises:
            SourceUnavailable: the controller does not answer; economy leases run out meanwhile.
            InputInvalid: it answers what this agent does not understand.
        """
        known = self._serial if self._newest.applied is not None else ""
        query = urlencode({"wait": WAIT_S if known else 0, "serial": known})
        reply = self._link.call("GET", f"{self._target}?{query}", limit_s=WAIT_S + ANSWER_LIMIT_S)
        answer = reply.json()
        if reply.status != 200:
            raise SourceUnavailable(
                f"the controller does not say what is wished ({reply.status}): "
                f"{answer.get('error', 'no reason given')}"
            )
        told = Told.from_json(answer)
        self._newest.heard_s = self._clock.monotonic()
        self._obey(told)
        self._serial = told.desired.serial
        self._knowledge.hear(told)

    def _obey(self, told: Told) -> None:
        """Hand the wishes on, and keep what came of it."""
        before = self._newest.applied
        try:
            applied = self._actuator.apply(told.desired, self._owners(told))
        except WattmeshError as error:
            applied = Applied(mode="none", epoch=told.desired.epoch, trouble=str(error)[:500])
        self._newest.applied = applied
        locks = {each.gpu_uuid: each.clock_mhz for each in applied.gpus}
        self._exporter.locked({gpu: mhz for gpu, mhz in locks.items() if mhz is not None})
        if applied != before:
            if applied.trouble and (before is None or applied.trouble != before.trouble):
                log.warning("no clock is set here: %s", applied.trouble)
            self._changed()

    def _owners(self, told: Told) -> dict[str, Owners]:
        """Say whose processes each holder's are: by this node's own view, else by their user."""
        view, claims = self._view.view, self._newest.claims
        if view is None:
            return {
                each.run: Owners(uids=frozenset({each.owner_uid}))
                for each in told.holders
                if each.owner_uid is not None
            }
        pids: dict[str, set[int]] = {each.run: set() for each in told.holders}
        for gpu, users in view.users.items():
            run = claims[gpu].run if gpu in claims else ""
            if run:
                pids.setdefault(run, set()).update(process.pid for process in users)
        return {run: Owners(pids=frozenset(each)) for run, each in pids.items()}


def facts(
    newest: Newest, exporter: DeviceExporter, *, boot_id: str, deliver_s: float
) -> dict[str, Any]:
    """Give what an agent tells beside its readings."""
    unread = (f"{who}: {why}" for who, why in newest.sample.troubles)
    troubles = [newest.sample.trouble, *unread, *exporter.troubles()]
    return {
        "version": wattmesh.__version__,
        "boot_id": boot_id,
        "deliver_s": deliver_s,
        "applied": newest.applied.to_json() if newest.applied else None,
        "troubles": [each for each in troubles if each],
    }
