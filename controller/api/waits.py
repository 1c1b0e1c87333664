"""Bound the calls that wait at the same time, per user and per node's agent.

Invariant: a place is given back however the call ends. Everything here runs on the server's own
thread.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from wattmesh.controller.api.request_context import Call, RequestContext
from wattmesh.errors import RetryLater


class TooMany(RetryLater):
    """One user has too many calls waiting; everybody else is served."""


class Waits:
    """Counts the waiting calls of one server, of every kind."""

    def __init__(self, context: RequestContext) -> None:
        """Begin with no waiting call."""
        self._context = context
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def place(self, call: Call) -> Iterator[None]:
        """Hold a place for a waiting call.

        Raises:
            TooMany: `api.waits_per_user` calls of the same caller wait already.
        """
        most, who = self._context.loop_facts.settings.api.waits_per_user, _who(call)
        if self._waiting[who] >= most:
            raise TooMany(
                f"{most} calls of {who} wait already (api.waits_per_user); ask again when one of "
                "them has ended"
            )
        self._waiting[who] += 1
        try:
            yield
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                del self._waiting[who]


def _who(call: Call) -> str:
    """Name the caller whose places a call takes: a uid (with its node, if relayed), or a node."""
    if call.peer.uid >= 0:
        through = f" through {call.peer.node}" if call.peer.node else ""
        return f"uid {call.peer.uid}{through}"
    return f"node {call.path.get('node', '')}"
