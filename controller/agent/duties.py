"""What the loops of an agent do in one turn: read, deliver, hear (`obeying.py` has the fourth).

Invariant: each may be killed at any instruction and done again; what matters is in the outbox.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import wattmesh
from wattmesh.controller.agent.knowledge import PATIENCE_S, Knowledge, Told
from wattmesh.controller.agent.link import Link
from wattmesh.controller.agent.outbox import Outbox
from wattmesh.controller.agent.refusals import KeptBack
from wattmesh.controller.journal.nodes.node_facts import DeviceFacts, known
from wattmesh.controller.process.loops import Clock
from wattmesh.errors import JournalUnavailable, SourceUnavailable
from wattmesh.telemetry.desired import Applied
from wattmesh.telemetry.energy.attribution import Claim
from wattmesh.telemetry.energy.delivery import Batch, Report, baseline, live
from wattmesh.telemetry.energy.exporter import DeviceExporter
from wattmesh.telemetry.energy.node_claims import NodeClaims
from wattmesh.telemetry.energy.sampler import Sample, Sampler

log = logging.getLogger(__name__)

DELIVERY_LIMIT_S = 20.0
MOST_BATCHES = 20
"""Delivered in one turn, after an outage; the rest follows in the next."""

WAIT_S = 15.0
"""How long the controller may take to say something new; well below a third of any lease."""

ANSWER_LIMIT_S = 10.0

REFUSALS = frozenset({400, 413, 422})
"""A delivery that will be refused as it is whenever it comes, and was never counted."""

LONGEST_WHY = 300


@dataclass(slots=True)
class Newest:
    """The newest facts of an agent's loops; each field is replaced whole, by one thread."""

    sample: Sample
    claims: Mapping[str, Claim]
    told: Told | None = None
    applied: Applied | None = None
    heard_s: float | None = None
    delivered_s: float | None = None
    kept_back: KeptBack = field(default_factory=KeptBack)


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
        # Both at once: what is asked in between must not look like a step of the wall clock.
        monotonic_s, now, newest = self._clock.monotonic(), self._clock.now(), self._newest
        if self._knowledge.grid != self._grid:
            self._grid = self._knowledge.grid
            self._sampler.regrid(self._grid)
        holders = self._knowledge.holders(monotonic_s)
        claims = None
        if holders is not None:
            claims = newest.claims = self._node.claims(holders, newest.sample.devices)
        newest.sample = self._sampler.step(now, monotonic_s, claims)
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
        self._newest.kept_back = self._outbox.kept_back()
        report = self._report(batch, fresh=fresh)
        body = json.dumps(report.to_json(), separators=(",", ":")).encode()
        try:
            reply = self._link.call("POST", self._target, body, limit_s=DELIVERY_LIMIT_S)
            answer = reply.json()
        except SourceUnavailable:
            self._give_up_on_old_counters(fresh)
            raise
        if reply.status != 200:
            why = str(answer.get("error", "no reason given"))[:LONGEST_WHY]
            if batch is not None and reply.status in REFUSALS:
                self._outbox.refused(batch, why)
                return True
            raise SourceUnavailable(
                f"the controller did not take the delivery ({reply.status}): {why}"
            )
        if fresh:
            self._outbox.adopt(map(baseline, answer.get("baselines", ())))
        if batch is not None:
            self._outbox.acknowledged(batch)
        return batch is not None

    def _report(self, batch: Batch | None, *, fresh: bool) -> Report:
        """Put together what is told beside a batch."""
        sample = self._newest.sample
        return Report(
            batch=batch,
            fresh=fresh,
            # What a driver reports beside all sense is not known; the rest is told all the same.
            devices={each.gpu_uuid: known(DeviceFacts, live(each)) for each in sample.readings},
            missing=sample.missing,
            facts=self._facts(),
        )

    def _give_up_on_old_counters(self, fresh: bool) -> None:
        """Begin anew when the controller cannot be asked what a lost outbox had delivered."""
        if fresh and self._clock.monotonic() - self._started_s > PATIENCE_S:
            log.warning("the controller is away: this new outbox begins with the counters of now")
            self._outbox.adopt(())


class Hearing:
    """Ask the controller what is wished, and who owns what here."""

    def __init__(
        self,
        link: Link,
        knowledge: Knowledge,
        *,
        newest: Newest,
        clock: Clock,
        node: str,
        heard: Callable[[], None],
    ) -> None:
        """Take the parts; `heard` is called when there is an answer to obey."""
        self._link = link
        self._knowledge = knowledge
        self._newest = newest
        self._clock = clock
        self._target = f"/v1/agents/{quote(node, safe='')}/desired"
        self._heard = heard
        self._serial = ""

    def turn(self) -> None:
        """Wait for an answer: leases are renewed by hearing, and by nothing else.

        Raises:
            SourceUnavailable: the controller does not answer; economy leases run out meanwhile.
            InputInvalid: it answers what this agent does not understand.
        """
        query = urlencode({"wait": WAIT_S if self._serial else 0, "serial": self._serial})
        reply = self._link.call("GET", f"{self._target}?{query}", limit_s=WAIT_S + ANSWER_LIMIT_S)
        answer = reply.json()
        if reply.status != 200:
            raise SourceUnavailable(
                f"the controller does not say what is wished ({reply.status}): "
                f"{answer.get('error', 'no reason given')}"
            )
        told = Told.from_json(answer)
        self._newest.told, self._newest.heard_s = told, self._clock.monotonic()
        self._heard()
        self._serial = told.desired.serial
        self._knowledge.hear(told)


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
        "refused": newest.kept_back.to_json(),
        "troubles": [each for each in troubles if each],
    }
