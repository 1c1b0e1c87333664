"""What ranks tell each other outside any process group: generations, votes, failures, peers.

Everything lives in the launch's own TCPStore. It outlives each generation's process group, so a
rank can tell others something while a group hangs.

Invariant: a key is either written once (generations, verdicts, the first failure), or written by
one rank only (votes, phases, peers).
"""

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.launch.peers import RankProcess

POLL_S = 0.02
"""Longest pause between two reads of the store."""

FIRST_POLL_S = 0.001
"""Pause before the second read: in a switch, others are mostly a few milliseconds behind."""


def pauses() -> Iterator[float]:
    """Yield the seconds before each further read: `FIRST_POLL_S`, doubled up to `POLL_S`."""
    pause_s = FIRST_POLL_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, POLL_S)


class LaunchStore:
    """One rank's connection to the launch's store."""

    def __init__(self, store: Store, *, rank: int, launched: int) -> None:
        """Use `store`; `rank` is the global rank, `launched` how many ranks were started."""
        self._store = store
        self.rank = rank
        self.launched = launched

    @classmethod
    def connect(cls, timeout_s: float) -> "LaunchStore":
        """Connect to the store of this launch, which torchrun's environment variables name.

        Raises:
            InputInvalid: not started by a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and
                MASTER_PORT.
        """
        try:
            store, rank, launched = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
        except ValueError as error:
            raise InputInvalid(
                f"attach: no launcher was found ({error}); start the script with "
                "`python -m wattmesh.integrations.torchrun --nproc N --checkpoint-dir DIR -- "
                "SCRIPT`."
            ) from error
        return cls(PrefixStore("wattmesh", store), rank=rank, launched=launched)

    def separate(self, timeout_s: float) -> "LaunchStore":
        """Open another connection, so that a thread never waits for another thread's call."""
        # torch's type stubs do not know clone().
        store: Store = self._store.clone()  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=timeout_s))
        return LaunchStore(store, rank=self.rank, launched=self.launched)

    def under(self, prefix: str) -> Store:
        """Return the part of the store below `prefix`, for one process group."""
        return PrefixStore(prefix, self._store)

    def put(self, key: str, value: Any) -> None:
        """Set `key` to a JSON value."""
        self._store.set(key, json.dumps(value))

    def peek(self, key: str) -> Any:
        """Read `key` without waiting; None if it is not set."""
        if not self._store.check([key]):
            return None
        return json.loads(self._store.get(key))

    def wait(self, key: str) -> Any:
        """Wait for `key`; the caller is inside a watchdog phase, whose deadline bounds the wait."""
        pause_s = pauses()
        while (value := self.peek(key)) is None:
            time.sleep(next(pause_s))
        return value

    def count(self, key: str, amount: int = 1) -> int:
        """Add to a counter atomically and return its new value."""
        return int(self._store.add(key, amount))

    def publish(self, generation: Generation) -> None:
        """Publish a generation to every rank."""
        self.put(f"generation/{generation.number}", generation.to_json())

    def generation(self, number: int) -> Generation | None:
        """Read generation `number`; None while it is not published."""
        data = self.peek(f"generation/{number}")
        return None if data is None else Generation.from_json(data)

    def spoil(self, number: int, problem: str) -> None:
        """Record that this rank gives generation `number` up.

        Only the first problem is kept: later ones are mostly its consequences.
        """
        text = json.dumps(f"rank {self.rank}: {problem}")
        self._store.compare_set(f"spoiled/{number}", "", text)

    def vote(self, number: int, problem: str) -> None:
        """Vote on generation `number`: this rank's problem, or "" for none."""
        self.put(f"vote/{number}/{self.rank}", problem)

    def spoiler(self, number: int) -> str:
        """Return which rank gave generation `number` up first, and why; "" if none did."""
        return str(self.peek(f"spoiled/{number}") or "")

    def fail(self, sentence: str) -> None:
        """Tell every rank that this launch must end; only the first sentence is kept."""
        self._store.compare_set("failure", "", json.dumps(sentence))

    def failure(self) -> str | None:
        """Return why this launch must end; None if it need not."""
        found = self.peek("failure")
        return None if found is None else str(found)

    def introduce(
        self,
        gpu: str,
        gpu_unknown: str = "",
        allocated: tuple[str, ...] = (),
        allocated_unknown: str = "",
    ) -> None:
        """Publish this process, its GPU and its job's GPUs, or why they are unknown, to its peers.

        The attributes of `RankProcess` say what each is.
        """
        here = RankProcess.here(self.rank, gpu, gpu_unknown, allocated, allocated_unknown)
        self.put(f"peer/{self.rank}", here.to_json())

    def peers(self) -> dict[int, RankProcess]:
        """Return the processes of all ranks that have introduced themselves."""
        found = {rank: self.peek(f"peer/{rank}") for rank in range(self.launched)}
        return {
            rank: RankProcess.from_json(data) for rank, data in found.items() if data is not None
        }

    def leave(self) -> None:
        """Record that this process ends on purpose, so that peers do not report it as gone."""
        self.put(f"left/{self.rank}", True)

    def has_left(self, rank: int) -> bool:
        """Return whether `rank` ended on purpose."""
        return bool(self._store.check([f"left/{rank}"]))
