"""Threads that run calls, shared fairly between the callers.

One user's calls take at most half of the threads at a time, and all users' calls together leave one
thread to operators and agents. Each user's calls wait in a bounded queue of their own; the queues
take turns. Invariant: a call whose sender has hung up is not run when its turn comes. Everything
but the calls themselves happens on the server's own thread.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect

from wattmesh.controller.api.request_context import RequestContext
from wattmesh.controller.api.transport.peers import PeerIdentity, is_operator
from wattmesh.errors import RetryLater

T = TypeVar("T")

MOST_WAITING = 100
"""Most waiting calls of one user; they are answered in turn, and a run makes two at a time."""

RETRY_AFTER_S = 2


class Crowded(RetryLater):
    """One user has too many calls waiting; everybody else is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller whose share of the threads a call takes.

    Attributes:
        name: the uid, as the kernel or an agent gives it, or the node.
        trusted: an operator, or a node's agent. `unbound`: an operator, who may take every thread.
        listens: whether the sender is still connected.
    """

    name: str
    trusted: bool = False
    unbound: bool = False
    listens: Callable[[], bool] = lambda: True

    @classmethod
    def of(
        cls, context: RequestContext, peer: PeerIdentity, listens: Callable[[], bool]
    ) -> "Caller":
        """Give the caller at the other end of a connection."""
        operator = is_operator(peer, context.loop_facts.settings.api.operators_group)
        return cls(
            name=f"uid {peer.uid}" if peer.uid >= 0 else f"node {peer.node}",
            trusted=operator or peer.agent,
            unbound=operator,
            listens=listens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    caller: Caller
    job: Callable[[], Any]
    done: "asyncio.Future[Any]"

    def is_wanted(self) -> bool:
        """Whether the sender still waits; if not, `done` gets ClientDisconnect."""
        if not self.done.done() and not self.caller.listens():
            self.done.set_exception(ClientDisconnect())
        return not self.done.done()


class Workers:
    """A few threads, and a queue for each caller."""

    def __init__(self, threads: int, name: str) -> None:
        """Prepare; a thread starts with the first call that needs it."""
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._queues: dict[str, deque[_Waiting]] = {}
        self._running: Counter[str] = Counter()
        self._untrusted = 0
        self._closed = False

    async def do(self, caller: Caller, job: Callable[[], T]) -> T:
        """Run a call when its turn comes, and give its result.

        Raises:
            Crowded: `MOST_WAITING` calls of the same caller wait already.
            ClientDisconnect: the sender has hung up, and nothing was done.
        """
        queue = deque(each for each in self._queues.get(caller.name, ()) if each.is_wanted())
        if len(queue) >= MOST_WAITING:
            raise Crowded(
                f"{MOST_WAITING} calls of {caller.name} wait already; ask again in "
                f"{RETRY_AFTER_S} s, and fewer at a time"
            )
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        queue.append(_Waiting(caller=caller, job=job, done=done))
        self._queues[caller.name] = queue
        self._start()
        return await done

    def close(self) -> None:
        """Start no further call; callable from any thread."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Start waiting calls while threads are free and shares allow it."""
        while not self._closed and self._running.total() < self._threads:
            waiting = self._next()
            if waiting is None:
                return
            self._running[waiting.caller.name] += 1
            self._untrusted += not waiting.caller.trusted
            running = asyncio.get_running_loop().run_in_executor(self._pool, waiting.job)
            running.add_done_callback(partial(self._ended, waiting))

    def _next(self) -> _Waiting | None:
        """Take the next call whose caller has a share left; its queue goes to the end."""
        for name, queue in list(self._queues.items()):
            while queue and not queue[0].is_wanted():
                queue.popleft()
            if queue and not self._may_take_thread(queue[0].caller):
                continue
            del self._queues[name]
            if queue:
                found = queue.popleft()
                if queue:
                    self._queues[name] = queue
                return found
        return None

    def _may_take_thread(self, caller: Caller) -> bool:
        if not caller.unbound and self._running[caller.name] >= max(1, self._threads // 2):
            return False
        return caller.trusted or self._untrusted < max(1, self._threads - 1)

    def _ended(self, waiting: _Waiting, ended: "asyncio.Future[Any]") -> None:
        self._running[waiting.caller.name] -= 1
        self._running += Counter()  # drops callers without a running call
        self._untrusted -= not waiting.caller.trusted
        if ended.cancelled():
            waiting.done.cancel()
        elif (error := ended.exception()) is not None:
            if not waiting.done.done():
                waiting.done.set_exception(error)
        elif not waiting.done.done():
            waiting.done.set_result(ended.result())
        self._start()
