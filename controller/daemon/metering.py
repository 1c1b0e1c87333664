"""How a process meters the devices it reads itself: the daemon its own, an agent its node's.

It needs no journal, so that an agent can use it. Invariant: a turn may be killed at any instruction
and repeated; rows that were not booked wait in the sampler.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime

from wattmesh.controller.process.loops import Clock
from wattmesh.controller.settings.model import Settings
from wattmesh.errors import JournalUnavailable
from wattmesh.telemetry.energy.attribution import EnergyClaim
from wattmesh.telemetry.energy.exporter import DeviceExporter
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.node_claims import NodeClaims
from wattmesh.telemetry.energy.sampler import Sample, Sampler

log = logging.getLogger(__name__)

HOLD_S, HOLD_SAMPLES = 5.0, 2.5


def hold_s(settings: Settings) -> float:
    """Give the longest gap, in seconds, over which one reading of power holds.

    So many seconds or so many samples, whichever is longer; with an energy counter it is not used.
    """
    return max(HOLD_S, HOLD_SAMPLES * settings.loops.sample_s)


class Metering(ABC):
    """Reads every device, and books what they drew every `flush_s`. One thread calls `turn`."""

    def __init__(
        self,
        sampler: Sampler,
        exporter: DeviceExporter,
        clock: Clock,
        flush_s: float,
        node: NodeClaims | None,
    ) -> None:
        """Keep the parts; `node` says which run owns each device, where processes can be seen."""
        self._sampler = sampler
        self._exporter = exporter
        self._clock = clock
        self._flush_s = flush_s
        self._node = node
        self._flushed_s = clock.monotonic()

    def turn(self) -> None:
        """Read once; book when it is due.

        Raises:
            JournalUnavailable: nothing could be booked; the rows wait and are booked later.
        """
        # Both clocks at once: time between the two reads would look like a step of the wall clock.
        monotonic_s, now = self._clock.monotonic(), self._clock.now()
        due = monotonic_s - self._flushed_s >= self._flush_s
        self._sampler.regrid(self._slots(now, due=due))
        sample = self._sampler.step(now, monotonic_s, self._claims(now, monotonic_s))
        self._took(sample, monotonic_s)
        self._exporter.observe(sample, self._sampler.totals())
        if due:
            # Set first: while the journal is gone it is asked once per flush_s, not per sample.
            self._flushed_s = monotonic_s
            self._sampler.flush()

    def close(self) -> None:
        """Book the rows that wait, and close the power source."""
        try:
            self._sampler.flush()
        except JournalUnavailable as error:
            log.warning(
                "the newest energy is not booked; the hardware counters cover it: %s", error
            )
        self._sampler.close()
        if self._node is not None:
            self._node.close()

    @abstractmethod
    def _slots(self, now: datetime, *, due: bool) -> SlotGrid:
        """Give the ledger's slot grid; `due`: a booking follows."""

    @abstractmethod
    def _claims(self, now: datetime, monotonic_s: float) -> Mapping[str, EnergyClaim] | None:
        """Say whose each device is; None while it is not known."""

    @abstractmethod
    def _took(self, sample: Sample, monotonic_s: float) -> None:
        """Keep the newest sample where others read it."""
