"""How a rank reports to the daemon: by global rank 0's client, by a relay through it, or not.

Invariant: no call here waits for the daemon or the network.
"""

from typing import Protocol

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.wire.messages import Finish, Orders, Progress, Transition


class Reporter(Protocol):
    """What a session needs of the object that reports for it."""

    def progress(self, message: Progress) -> None:
        """Report where training stands; only the newest matters."""
        ...

    def transition(self, message: Transition) -> None:
        """Report one step of a switch; kept in order until acknowledged."""
        ...

    def finish(self, message: Finish) -> None:
        """Report the end of this launch; kept until acknowledged."""
        ...

    def orders(self) -> Orders:
        """Return the daemon's latest answer."""
        ...

    def pump(self) -> None:
        """Forward the messages of other ranks."""
        ...

    def close(self, patience_s: float) -> None:
        """Wait up to `patience_s` until what is queued is sent, then stop."""
        ...


class SilentReporter:
    """Reports nothing: for a job without a daemon, and for ranks other than global rank 0."""

    def progress(self, message: Progress) -> None:
        """Do nothing."""

    def transition(self, message: Transition) -> None:
        """Do nothing."""

    def finish(self, message: Finish) -> None:
        """Do nothing."""

    def orders(self) -> Orders:
        """Return no order."""
        return Orders()

    def pump(self) -> None:
        """Do nothing."""

    def close(self, patience_s: float) -> None:
        """Do nothing."""


class StoreReporter:
    """Reports for a leader other than global rank 0, through the store, to global rank 0."""

    def __init__(self, launch_store: LaunchStore) -> None:
        """Write messages to `launch_store`."""
        self._launch_store = launch_store

    def progress(self, message: Progress) -> None:
        """Replace the newest progress."""
        self._launch_store.put("relay/progress", message.to_json())

    def transition(self, message: Transition) -> None:
        """Queue a transition."""
        self._queue("transition", message)

    def finish(self, message: Finish) -> None:
        """Queue the end."""
        self._queue("finish", message)

    def orders(self) -> Orders:
        """Read the orders that global rank 0 received last; no order if they are invalid."""
        try:
            return Orders.from_json(self._launch_store.peek("relay/orders") or {})
        except InputInvalid:
            return Orders()

    def pump(self) -> None:
        """Do nothing."""

    def close(self, patience_s: float) -> None:
        """Do nothing: the messages are in the store."""

    def _queue(self, kind: str, message: Transition | Finish) -> None:
        number = self._launch_store.count("relay/count") - 1
        self._launch_store.put(f"relay/message/{number}", {"kind": kind, "body": message.to_json()})


class Pump:
    """Global rank 0's end of the relay: forwards messages from the store to a reporter."""

    def __init__(self, launch_store: LaunchStore, to: Reporter) -> None:
        """Forward from `launch_store` to the reporter `to`."""
        self._launch_store = launch_store
        self._to = to
        self._next = 0
        self._seq = -1
        self._orders: Orders | None = None

    def run(self) -> None:
        """Forward what has arrived since the last call, and publish the newest orders."""
        orders = self._to.orders()
        if orders != self._orders:
            self._launch_store.put("relay/orders", orders.to_json())
            self._orders = orders
        while (item := self._launch_store.peek(f"relay/message/{self._next}")) is not None:
            self._next += 1
            if item["kind"] == "transition":
                self._to.transition(Transition.from_json(item["body"]))
            else:
                self._to.finish(Finish.from_json(item["body"]))
        newest = self._launch_store.peek("relay/progress")
        if newest is not None and newest["seq"] != self._seq:
            self._seq = newest["seq"]
            self._to.progress(Progress.from_json(newest))
