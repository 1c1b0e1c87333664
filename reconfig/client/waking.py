"""Speaks with the daemon for a run that sleeps, from its launcher.

It tells what the last launch could not tell any more, and asks whether the run is to wake before
its time. Invariant: nothing here can keep a run asleep; a daemon that does not answer changes
nothing.
"""

import logging
import time
from dataclasses import dataclass

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig.client.orderbook import OrderBook
from wattmesh.reconfig.client.outbox import JobOutbox
from wattmesh.reconfig.launch.asleep import AsleepNote
from wattmesh.reconfig.launch.folder import RunFolder, read_json
from wattmesh.reconfig.launch.generation import SwitchNote
from wattmesh.reconfig.launch.peers import boot_id
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import Order, Orders

log = logging.getLogger(__name__)

CALL_LIMIT_S = 3.0
UNKNOWN_RUN = 404


def tell_what_is_left(folder: RunFolder) -> int:
    """Send the reports that the launch which fell asleep left on disk; return how many are left.

    Only for a launcher none of whose launches runs: else the launch itself sends them.
    """
    try:
        outbox = JobOutbox(folder.outbox)
        link = DaemonLink.from_environment() if outbox.head() is not None else None
        while link is not None and (head := outbox.head()) is not None:
            path = f"/v1/runs/{head.body.get('run')}/{head.kind}"
            answer = link.call("POST", path, head.body, CALL_LIMIT_S)
            # A journal that does not know the run hears it from the next launch.
            if not answer.accepted and (not answer.final or answer.status == UNKNOWN_RUN):
                break
            outbox.done()
        return len(outbox)
    except (OSError, SourceUnavailable, InputInvalid) as error:
        log.debug("that the run sleeps could not be told: %s", error)
        return -1


def resume_order(folder: RunFolder, asleep: AsleepNote, *, resizes: bool = False) -> Order | None:
    """Return the daemon's order to wake the run; None if there is none, or no answer.

    `resizes`: whether it may be woken with more ranks than it had.
    """
    try:
        link = DaemonLink.from_environment()
        if link is None:
            return None
        answer = link.call("GET", f"/v1/runs/{asleep.run}/order", None, CALL_LIMIT_S)
        heard = Orders.from_json(answer.body) if answer.accepted else Orders()
    except (SourceUnavailable, InputInvalid) as error:
        log.debug("whether to wake is not known: %s", error)
        return None
    return OrderBook(folder).pick_resume(heard, asleep, resizes=resizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunWake:
    """An order to wake that was taken. `switch_id`: its id; `ranks`: that it names."""

    switch_id: str
    ranks: tuple[int, ...]
    reason: str


def begun(folder: RunFolder, asleep: AsleepNote) -> BegunWake | None:
    """Return the order to wake that was taken before, and perhaps not carried out; None: none was.

    The daemon does not give an order again that was taken: whoever died with it is followed by the
    next one who looks. A run that sleeps has no other request in its folder.
    """
    asked = read_json(folder.next_file) or {}
    try:
        note = SwitchNote.from_json(asked["switch"])
        ranks = tuple(int(each) for each in asked["ranks"])
        tried = int(asked["tries"])
    except (KeyError, TypeError, ValueError, InputInvalid):
        return None
    if tried or not ranks or asked.get("checkpoint") != asleep.checkpoint:
        return None
    return BegunWake(switch_id=note.switch_id, ranks=ranks, reason=note.reason)


def begin(folder: RunFolder, asleep: AsleepNote, order: Order) -> BegunWake:
    """Record that the next launch carries out `order`, which it proves and reports.

    The request is there before the order counts as taken: after a crash between the two it is taken
    again, to the same effect.

    Raises:
        OSError: the file system refuses; the next launch begins where the run fell asleep.
    """
    note = SwitchNote(
        switch_id=order.switch_id,
        epoch=order.epoch,
        point=order.point,
        old_layout=asleep.layout,
        old_ranks=asleep.ranks,
        began_s=time.monotonic(),
        boot=boot_id(),
        to=str(order.layout),
        reason=order.reason,
    )
    folder.ask_next(
        checkpoint=asleep.checkpoint,
        layout=order.layout,
        ranks=order.ranks,
        probe=asleep.probe,
        switch=note.to_json(),
    )
    OrderBook(folder).begin(order, step=asleep.step, attempt=asleep.attempt)
    return BegunWake(switch_id=order.switch_id, ranks=tuple(order.ranks), reason=order.reason)
