"""The orders of one run: which to carry out, and which were begun, on disk to survive a crash.

Invariant: a switch is recorded on disk as begun before anything is done for it. So no crash makes a
run carry it out twice, and a launch that dies in a switch leaves a record of it. Epochs compare
within one journal (docs/decisions/0030): no order is obeyed with an older epoch than one before.
"""

import logging
from typing import Any

from wattmesh.reconfig.client.orders import ExpertsStanding, OrderAnswer, OrderContext, judge
from wattmesh.reconfig.launch.asleep import AsleepNote
from wattmesh.reconfig.launch.folder import RunFolder, read_json, write_json
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.wire.messages import SWITCH_ID_KEY, Order, Orders

log = logging.getLogger(__name__)

REMEMBERED = 100
"""How many begun switches are kept; older ones are void by their step window or attempt number."""

JOURNALS = 16
"""How many journals' epochs are kept: those whose orders were begun last."""


class OrderBook:
    """The leader's record of orders, kept in the run folder."""

    def __init__(self, folder: RunFolder) -> None:
        """Keep the book in `folder`; it is read at each use, because another rank may have led."""
        self._folder = folder
        self._told: set[str] = set()

    def pick(
        self,
        heard: Orders,
        generation: Generation,
        *,
        attempt: int,
        step: int,
        launched: int,
        relaunched: bool,
        holds: bool = False,
        resizes: bool = False,
        seekable: bool = True,
        experts: ExpertsStanding | None = None,
    ) -> Order | None:
        """Return the order to carry out at this boundary, if any."""
        order = heard.order
        if order is None or heard.frozen:
            return None
        book = self._read()
        answer, why = judge(
            order,
            OrderContext(
                run=generation.run,
                attempt=attempt,
                step=step,
                layout=generation.layout,
                ranks=generation.ranks,
                launched=launched,
                relaunched=relaunched,
                holds=holds,
                resizes=resizes,
                seekable=seekable,
                experts=experts,
                epoch=int(book["epochs"].get(order.journal, 0)),
                done=frozenset(book["done"]),
            ),
        )
        if answer is OrderAnswer.TAKE:
            return order
        # A waiting order is not logged; a void one is logged once, even if it waited before.
        new = order.switch_id not in self._told and order.switch_id not in book["done"]
        if answer is OrderAnswer.VOID and new:
            self._told.add(order.switch_id)
            log.warning("the order to go to %s is not taken: %s", order.layout, why)
        return None

    def pick_resume(
        self, heard: Orders, asleep: AsleepNote, *, resizes: bool = False
    ) -> Order | None:
        """Return the order to wake a run that sleeps, if any; a frozen run is woken too."""
        order = heard.order
        if order is None:
            return None
        book = self._read()
        answer, _ = judge(
            order,
            OrderContext(
                run=asleep.run,
                attempt=asleep.attempt,
                step=asleep.step,
                layout=asleep.layout,
                ranks=asleep.ranks,
                launched=asleep.launched,
                relaunched=True,
                asleep=True,
                resizes=resizes,
                seekable=asleep.seekable,
                epoch=int(book["epochs"].get(order.journal, 0)),
                done=frozenset(book["done"]),
            ),
        )
        return order if answer is OrderAnswer.TAKE else None

    def begin(self, order: Order, *, step: int, attempt: int) -> None:
        """Record durably that `order` is begun."""
        book = self._read()
        done = [*book["done"], order.switch_id][-REMEMBERED:]
        epochs = dict(book["epochs"])
        epochs[order.journal] = max(int(epochs.pop(order.journal, 0)), order.epoch)
        newest = list(epochs.items())[-JOURNALS:]
        write_json(self._folder.orders_file, {"epochs": newest, "done": done})
        write_json(
            self._folder.switch_file,
            {
                SWITCH_ID_KEY: order.switch_id,
                "epoch": order.epoch,
                "step": step,
                "attempt": attempt,
            },
        )

    def end(self) -> None:
        """Record that no switch is in progress."""
        self._folder.switch_file.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        """Read the book; an old format has a single epoch, kept under the journal ""."""
        found = read_json(self._folder.orders_file) or {}
        epochs = dict(found.get("epochs", [["", found.get("epoch", 0)]]))
        return {"done": [], **found, "epochs": epochs}
