"""Attributes this node's devices at every step: driver, process table and registrations.

Invariant: while the driver does not answer, the last view is used for `KEPT_S`, and after that the
registrations unchecked; a silent driver never turns a training run's GPU into an idle one.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.deadline import Worker
from wattmesh.telemetry.energy.attribution import EnergyClaim, Holder, NodeView, attribute
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
        """Prepare; nothing is read before the first call.

        Args: pids: the driver's list of compute processes; None: registrations are believed
        unchecked. host: this node's host name, as runs register it. looker: reads processes;
        default from this machine's /proc. monotonic: the clock that a view's age is measured on.
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
        """The newest view; None without one."""
        return self._view

    def claims(
        self, holders: Sequence[Holder], devices: Collection[str]
    ) -> Mapping[str, EnergyClaim]:
        """Read the processes, and attribute every device.

        Args:
            holders: what runs registered.
            devices: names of all devices that are read here.
        """
        if self._pids is not None:
            self._look(self._pids, holders)
        return attribute(holders, self._view, devices)

    def close(self) -> None:
        """End the worker thread."""
        self._worker.close()

    def _look(self, pids: ComputePids, holders: Sequence[Holder]) -> None:
        """Read a new view, or keep the last one for `KEPT_S`."""
        here = [each.pid for each in holders if each.host == self._host and each.pid > 0]
        try:
            listed = self._worker.call(pids, DEADLINE_S)
        except (SourceUnavailable, OSError) as error:
            if self._view is not None and self._monotonic() - self._viewed_s > KEPT_S:
                log.warning("the processes on the GPUs are not known any more: %s", error)
                self._view = None
            return
        self._view = self._looker.look(listed, here)
        self._viewed_s = self._monotonic()


def compute_pids(source: object) -> ComputePids | None:
    """Return a power source's list of compute processes; None when it has none."""
    found: ComputePids | None = getattr(source, "compute_pids", None)
    return found
