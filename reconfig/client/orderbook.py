"""The orders of one run: which was heard, which was begun, what must survive a crash.

Invariant: that a plan was begun is on disk before anything is done for it, so no crash makes a run
carry it out twice, and a launch that died in a switch leaves a note of which. Epochs count within
one journal (docs/decisions/0030): in each, none is older than one that was obeyed.
"""

import logging
from typing import Any

from wattmesh.reconfig.client.orders import Answer, Standing, judge
from wattmesh.reconfig.launch.folder import RunFolder, read_json, write_json
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.wire import Order, Orders

log = logging.getLogger(__name__)

REMEMBERED = 100
"""Plans kept as done; the step window and the attempt number void older ones anyway."""

JOURNALS = 16
"""Journals whose epoch is kept: those that orders were begun of last."""


class OrderBook:
    """What a leader knows about orders, kept in the run folder."""

    def __init__(self, folder: RunFolder) -> None:
        """Keep the book in `folder`; read when first needed, for leaders change."""
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
        seekable: bool = True,
    ) -> Order | None:
        """Give the order to carry out at this boundary, if any."""
        order = heard.order
        if order is None or heard.frozen:
            return None
        book = self._read()
        answer, why = judge(
            order,
            Standing(
                run=generation.run,
                attempt=attempt,
                step=step,
                layout=generation.layout,
                ranks=generation.ranks,
                launched=launched,
                relaunched=relaunched,
                seekable=seekable,
                epoch=int(book["epochs"].get(order.journal, 0)),
                done=frozenset(book["done"]),
            ),
        )
        if answer is Answer.TAKE:
            return order
        # One that waits is no news; why it is void is said once, also after it had waited.
        new = order.plan not in self._told and order.plan not in book["done"]
        if answer is Answer.VOID and new:
            self._told.add(order.plan)
            log.warning("the order to go to %s is not taken: %s", order.layout, why)
        return None

    def begin(self, order: Order, *, step: int, attempt: int) -> None:
        """Note durably that `order` is begun."""
        book = self._read()
        done = [*book["done"], order.plan][-REMEMBERED:]
        epochs = dict(book["epochs"])
        epochs[order.journal] = max(int(epochs.pop(order.journal, 0)), order.epoch)
        newest = list(epochs.items())[-JOURNALS:]
        write_json(self._folder.orders_file, {"epochs": newest, "done": done})
        write_json(
            self._folder.switch_file,
            {"plan": order.plan, "epoch": order.epoch, "step": step, "attempt": attempt},
        )

    def end(self) -> None:
        """Note that no switch is in progress."""
        self._folder.switch_file.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        """Read the book; one from before identities has a single epoch, of no journal."""
        found = read_json(self._folder.orders_file) or {}
        epochs = dict(found.get("epochs", [["", found.get("epoch", 0)]]))
        return {"done": [], **found, "epochs": epochs}
