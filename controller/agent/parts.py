"""Build a whole agent from its settings, start its parts in order, stop them in reverse."""

import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from wattmesh.controller.agent.knowledge import Knowledge
from wattmesh.controller.agent.link import ControllerLink, ControllerLinks, Link
from wattmesh.controller.agent.loop_bodies import Delivering, Hearing, Newest, Reading, facts
from wattmesh.controller.agent.metrics import AgentMetrics
from wattmesh.controller.agent.obeying import REPEAT_S, Obeying
from wattmesh.controller.agent.outbox import AgentOutbox
from wattmesh.controller.agent.relay import Relay
from wattmesh.controller.daemon.metering import hold_s
from wattmesh.controller.daemon.power import power_source
from wattmesh.controller.metrics.scrapes import ScrapeServer
from wattmesh.controller.process.life import boot_id
from wattmesh.controller.process.loops import Clock, Loop
from wattmesh.controller.settings.checks import listen_address
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.settings.secrets import read_secret
from wattmesh.errors import FixInput, WattmeshError
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.deadline import Worker
from wattmesh.telemetry.energy.exporter import DeviceExporter
from wattmesh.telemetry.energy.node_claims import NodeClaims, compute_pids
from wattmesh.telemetry.energy.sampler import Sample, Sampler
from wattmesh.telemetry.readings import PowerSource

log = logging.getLogger(__name__)

ASK_AGAIN_S = 2.0
"""Seconds between two calls to a controller that does not answer."""

LAST_DELIVERY_S = 3.0
LOOP_STOP_S = 5.0


class AgentParts:
    """Every part of one agent."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        """Open what the settings name; the outbox's lock says whether this agent may run at all.

        Raises:
            WattmeshError: something is not as it must be; nothing is left open.
        """
        agent, clock = settings.agent, clock or Clock()
        self._clock = clock
        self._settings = settings
        self.node = agent.node or socket.gethostname()
        link = _link(settings)
        source = own_source(settings)
        boot = boot_id()
        self.outbox = AgentOutbox(
            agent.outbox, node=self.node, boot_id=boot, limit_mib=agent.outbox_mib
        )
        self.newest = Newest(sample=Sample(), claims={})
        held_s = hold_s(settings)
        self.exporter = DeviceExporter(node=self.node, hold_s=held_s)
        knowledge = Knowledge(self.outbox, clock.monotonic())
        view = NodeClaims(compute_pids(source), socket.gethostname())
        sampler = Sampler(source, self.outbox, knowledge.grid, boot_id=boot, hold_s=held_s)
        self._reading = Reading(
            sampler,
            view,
            knowledge,
            exporter=self.exporter,
            newest=self.newest,
            clock=clock,
            flush_s=min(agent.deliver_s, 10.0),
        )

        def newest_facts() -> Mapping[str, Any]:
            return facts(self.newest, self.exporter, boot_id=boot, deliver_s=agent.deliver_s)

        self._delivering = Delivering(
            self.outbox, link, self.newest, clock, newest_facts, node=self.node
        )
        self.sampler = Loop("sampler", settings.loops.sample_s, self._reading.turn, clock)
        self.delivery = Loop("delivery", agent.deliver_s, self._delivering.turn, clock)
        obeying = Obeying(
            ActuatorClient(settings.actuator.socket),
            view=view,
            newest=self.newest,
            clock=clock,
            exporter=self.exporter,
            changed=self.delivery.wake,
        )
        self.obeying = Loop("obeying", REPEAT_S, obeying.turn, clock)
        hearing = Hearing(
            link,
            knowledge,
            newest=self.newest,
            clock=clock,
            node=self.node,
            heard=self.obeying.wake,
        )
        self.hearing = Loop("hearing", ASK_AGAIN_S, hearing.turn, clock)
        self._relay = self._opened_relay(link)
        self._metrics: ScrapeServer | None = None

    @property
    def sentence(self) -> str:
        """Say the agent's state in one sentence."""
        sample = self.newest.sample
        trouble = self.delivery.state.trouble or self.hearing.state.trouble or sample.trouble
        read = f"{self.node}: {len(sample.readings)} of {len(sample.devices)} devices answer"
        if trouble:
            return f"{read}; {trouble}"
        kept = self.newest.kept_back
        if kept.rows:
            return f"{read}, all delivered but {kept.rows} rows that are refused: {kept.why}"
        return f"{read}, all delivered."

    def start(self) -> None:
        """Start everything.

        Raises:
            WattmeshError: a part did not start.
        """
        address = listen_address(self._settings.agent.metrics)
        if address is not None:
            self._metrics = ScrapeServer.started(
                address,
                "agent.metrics",
                self.exporter,
                AgentMetrics(self.newest, node=self.node, clock=self._clock),
            )
        if self._relay is not None:
            self._relay.start()
        for loop in (self.sampler, self.obeying, self.hearing, self.delivery):
            loop.start()

    def stop(self) -> None:
        """Stop every part; a call that still waits for its answer ends with the process."""
        self.hearing.stop(0.0)
        self.obeying.stop(LOOP_STOP_S)
        if self._relay is not None:
            self._relay.stop()
        self.sampler.stop(LOOP_STOP_S)
        self._reading.close()
        if self.delivery.stop(LAST_DELIVERY_S):
            # Rows that are not delivered now wait in the outbox for the next start.
            with suppress(WattmeshError, TimeoutError):
                Worker("last-delivery").call(self._delivering.turn, LAST_DELIVERY_S)
        if self._metrics is not None:
            self._metrics.stop()

    def _opened_relay(self, link: Link) -> Relay | None:
        settings = self._settings
        if settings.agent.relay is None:
            return None
        try:
            return Relay(
                settings.agent.relay, settings.api.group or settings.api.operators_group, link
            )
        except BaseException:
            self.outbox.close()
            raise


def own_source(settings: Settings) -> PowerSource:
    """Open this node's power source; `power.source = "agents"` means NVML here.

    Raises:
        FixInput: the settings name nothing to read.
    """
    power = settings.power
    if power.source == "agents":
        power = power.model_copy(update={"source": "nvml"})
    source = power_source(settings.model_copy(update={"power": power}))
    if source is None:
        raise FixInput(
            f'power.source is "{power.source}", so this agent has nothing to read; set it to '
            '"agents" (or "nvml", or "amd")'
        )
    return source


def _link(settings: Settings) -> Link:
    """Make the link to the controller, and to those that may lead in its place.

    Raises:
        FixInput: the address, the token file or the certificates cannot be used.
    """
    agent = settings.agent
    address = agent.controller or f"unix://{settings.api.socket}"
    token = read_secret("agent.token_file", agent.token_file) if agent.token_file else ""
    links = [
        ControllerLink(each, token=token, ca_file=agent.ca_file)
        for each in (address, *agent.standbys)
    ]
    return ControllerLinks(links) if agent.standbys else links[0]
