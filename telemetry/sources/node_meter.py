"""A node's own power meter, asked through its management controller (BMC), which answers slowly.

Invariant: no reading waits for the controller. Its newest answer is given again with its own time,
for a minute at most; a controller that refuses us is left alone, as many lock an account for it.
A meter tells what all supplies of a node draw, so its parts are in it: it is never booked.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.deadline import Overdue, Worker
from wattmesh.telemetry.readings import Component, PowerReading, Quality, utc_now

log = logging.getLogger(__name__)

EVERY_S = 10.0
"""Seconds between two questions; meters of nodes average over 1 to 60 s themselves."""

KEEP_S = 60.0
"""How long an answer is the node's present power."""

REFUSED_S, MOST_PAUSE_S = 900.0, 300.0
"""Seconds until a controller that refused us is asked again; until one that fails otherwise is, at
most."""

HIGHEST_POWER_W = 100_000.0
LONGEST_TROUBLE = 500
"""Characters of a sentence that may hold what a controller said; agents deliver it."""


class Denied(SourceUnavailable):
    """The controller takes neither name nor password, or does not allow this reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    power_w: float
    at: datetime
    monotonic_s: float


class NodeMeter:
    """The meter of one node (`PowerSource`). One thread reads it; close it after use."""

    def __init__(
        self,
        name: str,
        host: str,
        ask: Callable[[], float],
        *,
        close: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; the first reading asks.

        Args:
            name: of the source, on screens.
            host: the node's name.
            ask: gives the node's watts; may take long, and raises `SourceUnavailable`.
            close: releases what `ask` holds; called in its thread.
            monotonic: the clock.
        """
        self._name = name
        self._device = f"{Component.NODE}:{host}:{name}"
        self._ask, self._close_ask = ask, close
        self._monotonic = monotonic
        self._worker = Worker(name)
        self._asked: Future[_Answer] | None = None
        self._next_s = -math.inf
        self._failures = 0
        self._newest: _Answer | None = None
        self._trouble = "the node's management controller has not answered yet"

    @property
    def name(self) -> str:
        """The source's name on screens and in ledger rows."""
        return self._name

    def gpu_uuids(self) -> Sequence[str]:
        """Name the meter."""
        return [self._device]

    def read(self) -> Sequence[PowerReading]:
        """Return the newest answer, with its own time.

        Raises:
            SourceUnavailable: there is none that is young enough.
        """
        now_s = self._monotonic()
        if self._asked is None and now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self._asked = self._worker.begin(self._answer)
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            self._take(asked, now_s)
        newest = self._newest
        if newest is None or now_s - newest.monotonic_s > KEEP_S:
            raise SourceUnavailable(self._trouble)
        return [
            PowerReading(
                gpu_uuid=self._device,
                at=newest.at,
                monotonic_s=newest.monotonic_s,
                power_w=newest.power_w,
                energy_mj=None,
                clock_mhz=None,
                power_limit_w=None,
                source=self._name,
                quality=Quality.MEASURED,
                component=Component.NODE,
                every_s=EVERY_S,
            )
        ]

    def close(self) -> None:
        """End the worker thread."""
        with suppress(Overdue):
            self._worker.begin(self._close_ask)
        self._worker.close()

    def _answer(self) -> _Answer:
        power_w = self._ask()
        if not 0 < power_w <= HIGHEST_POWER_W:
            # A node that runs this draws something: 0 is what controllers say of a dead sensor.
            raise SourceUnavailable(f"the node's meter reads {power_w:g} W, which cannot be")
        return _Answer(power_w=power_w, at=utc_now(), monotonic_s=self._monotonic())

    def _take(self, asked: "Future[_Answer]", now_s: float) -> None:
        """Use an answer, or note why there is none and when to ask again."""
        try:
            self._newest = asked.result()
        except Exception as error:
            # Whatever a controller says, the GPUs beside it are read on.
            if not isinstance(error, SourceUnavailable | OSError):
                log.warning("%s: unexpected error", self._device, exc_info=error)
            self._trouble = (str(error) or type(error).__name__)[:LONGEST_TROUBLE]
            self._failures += 1
            again_s = EVERY_S * 2.0 ** min(self._failures - 1, 30)
            pause_s = REFUSED_S if isinstance(error, Denied) else min(MOST_PAUSE_S, again_s)
            self._next_s = now_s + pause_s
        else:
            self._failures = 0
            self._trouble = "the node's management controller has fallen silent"
