"""Several power sources as one: for each device the best source that answers.

Invariant: one reading per device and step, with its source in `PowerReading.source`, so the meter
never compares counters of two sources. A worse source stands in only after a better one has not
answered for `patience_s`: a single late answer is covered by its counter and needs no estimate.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.deadline import Overdue, Worker
from wattmesh.telemetry.readings import Closes, Explains, PowerReading, PowerSource

DEADLINE_S = 1.5
PATIENCE_S = 3.0


@runtime_checkable
class SeesProcesses(Protocol):
    """A source that also lists the compute processes on its devices."""

    def compute_pids(self) -> Mapping[str, tuple[int, ...]]:
        """List pids by device; a device that cannot be read is left out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReading:
    """Which source gave a device's last reading (index in the chain), and when (monotonic)."""

    rank: int
    at_s: float


def best(
    offered: Sequence[Iterable[PowerReading]],
    told: Mapping[str, LastReading],
    now_s: float,
    *,
    began_s: float,
    patience_s: float = PATIENCE_S,
) -> tuple[dict[str, PowerReading], dict[str, LastReading]]:
    """Choose a reading for every device. Pure.

    Args:
        offered: readings of each source, best first.
        told: by device, the source of its last reading.
        now_s: now, monotonic.
        began_s: when the chain was opened; for `patience_s` after that, better sources may still
            be opening, and worse ones are not used.
        patience_s: how long a better source may fail to answer.

    Returns:
        readings by device, and `told` for the next call. A reading with neither power nor energy
        is returned only when no source has more.
    """
    chosen: dict[str, PowerReading] = {}
    by: dict[str, LastReading] = dict(told)
    for rank, readings in enumerate(offered):
        for reading in readings:
            uuid = reading.gpu_uuid
            held = chosen.get(uuid)
            if held is not None and (held.tells or not reading.tells):
                continue
            before = told.get(uuid)
            if before is None:
                waits = rank > 0 and now_s - began_s <= patience_s
            else:
                waits = rank > before.rank and now_s - before.at_s <= patience_s
            if waits and reading.tells:
                continue
            chosen[uuid] = reading
            if reading.tells:
                by[uuid] = LastReading(rank=rank, at_s=now_s)
    return chosen, by


class Chain:
    """Several sources behind the protocol of one. One thread reads it; close it after use."""

    def __init__(
        self,
        sources: Sequence[PowerSource],
        *,
        deadline_s: float = DEADLINE_S,
        patience_s: float = PATIENCE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Join sources, best first (at least one); each is read by its own thread.

        Args:
            sources: the sources.
            deadline_s: longest duration of `read`.
            patience_s: see `best`.
            monotonic: the clock.
        """
        self._sources = tuple(sources)
        self._workers = tuple(Worker(f"read-{each.name}") for each in sources)
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._began_s = monotonic()
        self._told: dict[str, LastReading] = {}
        self._troubles: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The names of its sources, joined by "+"."""
        return "+".join(each.name for each in self._sources)

    @property
    def sources(self) -> tuple[PowerSource, ...]:
        """The sources, best first."""
        return self._sources

    @property
    def troubles(self) -> Mapping[str, str]:
        """Why sources or devices did not answer the last time, by name."""
        said = dict(self._troubles)
        for each in self._sources:
            if each.name not in said and isinstance(each, Explains):
                said |= each.troubles
        return said

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices of all sources, each once."""
        return list(dict.fromkeys(uuid for each in self._sources for uuid in each.gpu_uuids()))

    def read(self) -> Sequence[PowerReading]:
        """Read all sources concurrently and choose per device.

        Raises:
            SourceUnavailable: no source answered.
        """
        offered = self._ask()
        chosen, self._told = best(
            offered,
            self._told,
            self._monotonic(),
            began_s=self._began_s,
            patience_s=self._patience_s,
        )
        if not chosen:
            said = "; ".join(f"{name}: {why}" for name, why in self._troubles.items())
            raise SourceUnavailable(said or "no power source has given a reading yet")
        return list(chosen.values())

    def compute_pids(self) -> Mapping[str, tuple[int, ...]]:
        """List the pids on each device, from the first source that can.

        Raises:
            SourceUnavailable: no source can, or it does not answer.
        """
        for each in self._sources:
            if isinstance(each, SeesProcesses):
                return each.compute_pids()
        raise SourceUnavailable("no power source of this machine lists processes; NVML would")

    def close(self) -> None:
        """Close the sources that have a `close`."""
        for worker in self._workers:
            worker.close()
        for each in self._sources:
            if isinstance(each, Closes):
                each.close()

    def _ask(self) -> list[Sequence[PowerReading]]:
        """Read every source within the deadline; a failed or late one yields nothing."""
        until_s = time.monotonic() + self._deadline_s
        begun: list[Future[Sequence[PowerReading]] | None] = []
        for source, worker in zip(self._sources, self._workers, strict=True):
            try:
                begun.append(worker.begin(source.read))
            except Overdue as error:
                self._troubles[source.name] = f"has not answered for {error.waited_s:.0f} s"
                begun.append(None)
        wait([each for each in begun if each is not None], max(0.0, until_s - time.monotonic()))
        return [
            self._answer(source, answer)
            for source, answer in zip(self._sources, begun, strict=True)
        ]

    def _answer(
        self, source: PowerSource, answer: "Future[Sequence[PowerReading]] | None"
    ) -> Sequence[PowerReading]:
        """Return one source's readings, or note why there are none."""
        if answer is None:
            return ()
        if not answer.done():
            self._troubles[source.name] = f"did not answer within {self._deadline_s:g} s"
            return ()
        try:
            readings = answer.result()
        except (SourceUnavailable, OSError) as error:
            self._troubles[source.name] = str(error)
            return ()
        self._troubles.pop(source.name, None)
        return readings
