"""What an agent's loops do in one turn: read, deliver, hear (the fourth is in `obeying.py`).

Invariant: each turn may be killed at any instruction and repeated; what matters is in the outbox.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import wattmesh
from wattmesh.controller.agent.knowledge import PATIENCE_S, AgentInstructions, Knowledge
from wattmesh.controller.agent.link import Link
from wattmesh.controller.agent.outbox import AgentOutbox, OutboxFill
from wattmesh.controller.agent.refusals import KeptBack
from wattmesh.controller.daemon.metering import Metering
from wattmesh.controller.journal.nodes.node_facts import DeviceFacts, fitting_fields
from wattmesh.controller.process.loops import Clock
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.desired import Applied
from wattmesh.telemetry.energy.attribution import EnergyClaim
from wattmesh.telemetry.energy.delivery import EnergyBatch, Report, baseline, live
from wattmesh.telemetry.energy.exporter import DeviceExporter
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.node_claims import NodeClaims
from wattmesh.telemetry.energy.sampler import Sample, Sampler

log = logging.getLogger(__name__)

DELIVERY_LIMIT_S = 20.0
MOST_BATCHES = 20
"""Batches delivered in one turn, after an outage; the next turn delivers more."""

WAIT_S = 15.0
"""Long poll: seconds the controller may wait for news; well below a third of any lease."""

ANSWER_LIMIT_S = 10.0

REFUSALS = frozenset({400, 413, 422})
"""HTTP statuses of a delivery that would be refused again if repeated, and was not counted."""

LONGEST_WHY = 300


@dataclass(slots=True)
class Newest:
    """The newest facts of an agent's loops; each field is replaced whole, by one thread.

    `heard_s`, `taken_s`: monotonic, when the daemon last answered, and last took a delivery.
    """

    sample: Sample
    claims: Mapping[str, EnergyClaim]
    instructions: AgentInstructions | None = None
    applied: Applied | None = None
    heard_s: float | None = None
    kept_back: KeptBack = field(default_factory=KeptBack)
    fill: OutboxFill | None = None
    taken_s: float | None = None


class Reading(Metering):
    """Reads every device, and writes the energy it drew to the outbox."""

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
        """Keep the parts; rows are written to the outbox every `flush_s` seconds."""
        super().__init__(sampler, exporter, clock, flush_s, node)
        self._view = node
        self._knowledge = knowledge
        self._newest = newest

    def _slots(self, now: datetime, *, due: bool) -> SlotGrid:
        return self._knowledge.grid

    def _claims(self, now: datetime, monotonic_s: float) -> Mapping[str, EnergyClaim] | None:
        holders = self._knowledge.holders(monotonic_s)
        if holders is None:
            return None
        self._newest.claims = self._view.claims(holders, self._newest.sample.devices)
        return self._newest.claims

    def _took(self, sample: Sample, monotonic_s: float) -> None:
        self._newest.sample = sample


class Delivering:
    """Delivers what was measured to the controller."""

    def __init__(
        self,
        outbox: AgentOutbox,
        link: Link,
        newest: Newest,
        clock: Clock,
        facts: Callable[[], Mapping[str, Any]],
        *,
        node: str,
    ) -> None:
        """Keep the parts; `facts` gives what is reported beside the batches."""
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
            SourceUnavailable: the controller did not take a batch; it is delivered later.
            JournalUnavailable: the outbox cannot be read.
        """
        for _ in range(MOST_BATCHES):
            if not self._once():
                break

    def _once(self) -> bool:
        """Deliver one batch with the node's state; say whether there may be more batches."""
        fresh = self._outbox.fresh
        batch = None if fresh else self._outbox.batch()
        self._newest.kept_back, self._newest.fill = self._outbox.kept_back(), self._outbox.fill()
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
        self._newest.taken_s = self._clock.monotonic()
        if fresh:
            self._outbox.adopt(map(baseline, answer.get("baselines", ())))
        if batch is not None:
            self._outbox.acknowledged(batch)
        return batch is not None

    def _report(self, batch: EnergyBatch | None, *, fresh: bool) -> Report:
        sample = self._newest.sample
        return Report(
            batch=batch,
            fresh=fresh,
            # A nonsensical value from a driver is left out; the device's other values are reported.
            devices={
                each.gpu_uuid: fitting_fields(DeviceFacts, live(each)) for each in sample.readings
            },
            missing=sample.missing,
            facts=self._facts(),
        )

    def _give_up_on_old_counters(self, fresh: bool) -> None:
        """Let a new outbox begin with the present counters after `PATIENCE_S` without an answer."""
        if fresh and self._clock.monotonic() - self._started_s > PATIENCE_S:
            log.warning("the controller is away: this new outbox begins with the counters of now")
            self._outbox.adopt(())


class Hearing:
    """Asks the controller for the desired clocks and limits, and for the owners of GPUs here."""

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
        """Keep the parts; `heard` is called when there is an answer to obey."""
        self._link = link
        self._knowledge = knowledge
        self._newest = newest
        self._clock = clock
        self._target = f"/v1/agents/{quote(node, safe='')}/desired"
        self._heard = heard
        self._serial = ""

    def turn(self) -> None:
        """Wait for an answer: only an answer of the controller renews leases.

        Raises:
            SourceUnavailable: the controller does not answer; economy leases run out meanwhile.
            InputInvalid: this agent does not understand the answer.
        """
        query = urlencode({"wait": WAIT_S if self._serial else 0, "serial": self._serial})
        reply = self._link.call("GET", f"{self._target}?{query}", limit_s=WAIT_S + ANSWER_LIMIT_S)
        answer = reply.json()
        if reply.status != 200:
            raise SourceUnavailable(
                f"the controller gives no clocks and caps ({reply.status}): "
                f"{answer.get('error', 'no reason given')}"
            )
        instructions = AgentInstructions.from_json(answer)
        self._newest.instructions, self._newest.heard_s = instructions, self._clock.monotonic()
        self._heard()
        self._serial = instructions.desired.serial
        self._knowledge.hear(instructions)


def facts(
    newest: Newest, exporter: DeviceExporter, *, boot_id: str, deliver_s: float
) -> dict[str, Any]:
    """Give what an agent reports beside its readings."""
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
