"""What ranks tell each other outside any process group: generations, votes, failures, peers.

Everything lives in the launch's own TCPStore, which outlives each generation's process group, so
that a rank can speak while a group hangs.

Invariant: a key is written once by one rank (generations, verdicts, the first failure), or is one
rank's own (votes, phases, peers).
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
from wattmesh.reconfig.launch.peers import Peer

POLL_S = 0.02
"""Between looks at the store, where a wait is long."""

FIRST_POLL_S = 0.001
"""Before the second look: in a switch the others are mostly a few milliseconds behind."""


def pauses() -> Iterator[float]:
    """Seconds to wait before each further look at the store: at first short, then `POLL_S`."""
    pause_s = FIRST_POLL_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, POLL_S)


class LaunchStore:
    """The launch's store, as one connection of one rank."""

    def __init__(self, store: Store, *, rank: int, launched: int) -> None:
        """Use `store`; `rank` is the launcher's number, `launched` how many ranks it started."""
        self._store = store
        self.rank = rank
        self.launched = launched

    @classmethod
    def connect(cls, timeout_s: float) -> "LaunchStore":
        """Reach the store of this launch as torchrun's environment describes it.

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
        """Open a connection of its own, so that a thread never waits for another's call."""
        # torch's type stubs do not know clone().
        store: Store = self._store.clone()  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=timeout_s))
        return LaunchStore(store, rank=self.rank, launched=self.launched)

    def under(self, prefix: str) -> Store:
        """Give the part of the store that one process group may write to."""
        return PrefixStore(prefix, self._store)

    def put(self, key: str, value: Any) -> None:
        """Set `key` to a JSON value."""
        self._store.set(key, json.dumps(value))

    def peek(self, key: str) -> Any:
        """Read `key` without waiting; None when nobody has set it."""
        if not self._store.check([key]):
            return None
        return json.loads(self._store.get(key))

    def wait(self, key: str) -> Any:
        """Wait for `key`. The caller is inside a phase, whose deadline ends the wait."""
        pause_s = pauses()
        while (value := self.peek(key)) is None:
            time.sleep(next(pause_s))
        return value

    def count(self, key: str, amount: int = 1) -> int:
        """Add to a counter and give its new value."""
        return int(self._store.add(key, amount))

    def publish(self, generation: Generation) -> None:
        """Announce a generation to every rank."""
        self.put(f"generation/{generation.number}", generation.to_json())

    def generation(self, number: int) -> Generation | None:
        """Read generation `number`; None while it is not announced."""
        data = self.peek(f"generation/{number}")
        return None if data is None else Generation.from_json(data)

    def spoil(self, number: int, problem: str) -> None:
        """Say that this rank gives generation `number` up.

        The first to say so is the cause; later problems are mostly its consequences.
        """
        text = json.dumps(f"rank {self.rank}: {problem}")
        self._store.compare_set(f"spoiled/{number}", "", text)

    def vote(self, number: int, problem: str) -> None:
        """Say how generation `number` went for this rank; "" is well."""
        self.put(f"vote/{number}/{self.rank}", problem)

    def spoiler(self, number: int) -> str:
        """Which rank gave generation `number` up first, and why; "" when none did."""
        return str(self.peek(f"spoiled/{number}") or "")

    def fail(self, sentence: str) -> None:
        """Tell every rank that this launch must end; the first sentence stays."""
        self._store.compare_set("failure", "", json.dumps(sentence))

    def failure(self) -> str | None:
        """Why this launch must end; None while it need not."""
        found = self.peek("failure")
        return None if found is None else str(found)

    def introduce(self, gpu: str, gpu_unknown: str = "") -> None:
        """Make this process and its device, or why that is not known, known to its peers."""
        self.put(f"peer/{self.rank}", Peer.here(self.rank, gpu, gpu_unknown).to_json())

    def peers(self) -> dict[int, Peer]:
        """Every rank's process, as far as they have introduced themselves."""
        found = {rank: self.peek(f"peer/{rank}") for rank in range(self.launched)}
        return {rank: Peer.from_json(data) for rank, data in found.items() if data is not None}

    def leave(self) -> None:
        """Say that this process ends on purpose; its absence is no failure."""
        self.put(f"left/{self.rank}", True)

    def has_left(self, rank: int) -> bool:
        """Whether `rank` ended on purpose."""
        return bool(self._store.check([f"left/{rank}"]))
