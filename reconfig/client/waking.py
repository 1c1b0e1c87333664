"""Asks the daemon, from the launcher, whether a run that sleeps is to wake before its time.

Invariant: nothing here can keep a run asleep; a daemon that does not answer changes nothing.
"""

import logging
import time

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig.client.orderbook import OrderBook
from wattmesh.reconfig.launch.asleep import AsleepNote
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launch.generation import SwitchNote
from wattmesh.reconfig.launch.peers import boot_id
from wattmesh.reconfig.link import DaemonLink
from wattmesh.reconfig.wire import Order, Orders

log = logging.getLogger(__name__)

CALL_LIMIT_S = 3.0


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


def begin(folder: RunFolder, asleep: AsleepNote, order: Order) -> None:
    """Record that the next launch carries out `order`, which it proves and reports.

    Raises:
        OSError: the file system refuses; the next launch begins where the run fell asleep.
    """
    note = SwitchNote(
        plan=order.plan,
        epoch=order.epoch,
        point=order.point,
        old_layout=asleep.layout,
        old_ranks=asleep.ranks,
        began_s=time.monotonic(),
        boot=boot_id(),
        to=str(order.layout),
        reason=order.reason,
    )
    OrderBook(folder).begin(order, step=asleep.step, attempt=asleep.attempt)
    folder.ask_next(
        checkpoint=asleep.checkpoint,
        layout=order.layout,
        ranks=order.ranks,
        probe=asleep.probe,
        switch=note.to_json(),
    )
