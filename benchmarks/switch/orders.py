"""Gives the benchmarked job its orders, as a daemon would: the real protocol on a Unix socket.

The next order is given when the one before has ended. `order-N` appears in `marks` when the job has
fetched order N twice, so that it is known to have arrived: the job waits for that between switches,
outside of what is timed.
"""

import json
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hook.unix_http import UnixHttp, called
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import FINAL, SwitchState
from wattmesh.reconfig.wire.messages import Order, Orders, Register, Registered, Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A layout to go to, and the ranks that train in it."""

    layout: Layout
    ranks: tuple[int, ...]


class OrderGiver(UnixHttp):
    """Sends one run along a list of layouts."""

    def __init__(self, socket_path: Path, marks: Path, stops: Sequence[Stop]) -> None:
        """Serve at `socket_path`."""
        self.transitions: list[Transition] = []
        self._marks = marks
        self._stops = list(stops)
        self._given = 0
        self._open: Order | None = None
        self._register: Register | None = None
        self._lock = threading.Lock()
        super().__init__(socket_path)

    @property
    def confirmed(self) -> list[Transition]:
        """The last word of every switch that stands, in order."""
        return [each for each in self.transitions if each.state is SwitchState.CONFIRMED]

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer one call of the hook."""
        with self._lock:
            return 200, json.dumps(self._take(called(path), body)).encode()

    def _take(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        if call == "register":
            self._register = told = Register.from_json(body)
            return Registered(
                run=told.run, incarnation=told.incarnation, attempt=told.attempt, epoch=1
            ).to_json()
        if call == "transitions":
            self._note(Transition.from_json(body))
        if call == "order":
            return Orders(order=self._order(), epoch=1).to_json()
        return {}

    def _note(self, told: Transition) -> None:
        self.transitions.append(told)
        if (
            self._open is not None
            and told.switch_id == self._open.switch_id
            and told.state in FINAL
        ):
            self._open = None

    def _order(self) -> Order | None:
        if self._open is not None:
            (self._marks / f"order-{self._given}").touch()
        elif self._given < len(self._stops) and self._register is not None:
            stop, run = self._stops[self._given], self._register
            self._given += 1
            self._open = Order(
                switch_id=str(uuid.uuid4()),
                epoch=1,
                run=run.run,
                attempt=run.attempt,
                point=str(stop.layout),
                layout=stop.layout,
                ranks=stop.ranks,
                not_before_step=0,
                valid_until_step=1 << 40,
                reason="the benchmark asks for it",
            )
        return self._open
