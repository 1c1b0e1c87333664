"""Whose each device of this node is, look after look: driver, process table and registrations.

Invariant: a driver that does not answer in time leaves the look before in force for `KEPT_S`; after
that registrations stand as they are. It never turns a training run into an idle GPU.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.deadline import Worker
from wattmesh.telemetry.energy.attribution import Claim, Holder, NodeView, attribute
from wattmesh.telemetry.energy.node_view import ComputePids, Looker

log = logging.getLogger(__name__)

DEADLINE_S = 1.5
KEPT_S = 30.0


class NodeClaims:
    """Attributes the devices of one node; one thread calls it."""

    def __init__(
        self,
        pids: ComputePids | None,
        host: str,
        *,
        looker: Looker | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is asked before the first call.

        Args:
            pids: the driver's list of who computes where; None: registrations stand as they are.
            host: this node's host name, as runs register it.
            looker: looks up processes; default in this machine's process table.
            monotonic: the clock by which a look gets old.
        """
        self._pids = pids
        self._host = host
        self._looker = looker or Looker(host=host)
        self._monotonic = monotonic
        self._worker = Worker("compute-pids")
        self._view: NodeView | None = None
        self._viewed_s = 0.0

    @property
    def view(self) -> NodeView | None:
        """The newest look; None without one."""
        return self._view

    def claims(self, holders: Sequence[Holder], devices: Collection[str]) -> Mapping[str, Claim]:
        """Look, and say whose every device is.

        Args:
            holders: what runs registered.
            devices: names of all devices that are read here.
        """
        if self._pids is not None:
            self._look(self._pids, holders)
        return attribute(holders, self._view, devices)

    def close(self) -> None:
        """Let the thread beside go."""
        self._worker.close()

    def _look(self, pids: ComputePids, holders: Sequence[Holder]) -> None:
        """Look anew, or keep the look before for a while."""
        here = [each.pid for each in holders if each.host == self._host and each.pid > 0]
        try:
            listed = self._worker.call(pids, DEADLINE_S)
        except (SourceUnavailable, OSError) as error:
            if self._view is not None and self._monotonic() - self._viewed_s > KEPT_S:
                log.warning("who computes on which GPU is not known any more: %s", error)
                self._view = None
            return
        self._view = self._looker.look(listed, here)
        self._viewed_s = self._monotonic()


def compute_pids(source: object) -> ComputePids | None:
    """Give a power source's list of who computes where; None when it has none."""
    found: ComputePids | None = getattr(source, "compute_pids", None)
    return found
