"""A daemon on a Unix socket for the hook's tests: it gives orders, records reports, misbehaves.

It speaks the real protocol with the real wire types; the real daemon has tests of its own.
"""

import json
import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.hook.unix_http import UnixHttp, called
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import AT_PACE, FINAL, SwitchState
from wattmesh.reconfig.wire.messages import (
    Finish,
    Heartbeat,
    HeartbeatAnswer,
    Order,
    Orders,
    Progress,
    Register,
    Registered,
    SwitchMode,
    Transition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """An order to give: the next one after the one before has ended.

    Attributes:
        at: the step the order is for. `late_by`: its window ended this many steps before `at`.
        wakes_in_s: of sleep: how long.
        epoch, attempt, plan, run: what the order says, where not what is right.
        placement: of experts.
    """

    layout: Layout
    ranks: tuple[int, ...]
    at: int
    mode: SwitchMode = SwitchMode.IN_PLACE
    late_by: int = 0
    wakes_in_s: float | None = None
    epoch: int = 1
    attempt: int | None = None
    switch_id: str = ""
    run: str = ""
    placement: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True)
class Heard:
    """Everything a daemon was told, in order."""

    registers: list[Register] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    calls: int = 0


class FakeDaemon(UnixHttp):
    """Gives orders and records reports."""

    def __init__(
        self, socket_path: Path, marks: Path, wishes: list[Wish], mode: str = "act"
    ) -> None:
        """Serve at `socket_path`; leave a mark in `marks` when order N was fetched."""
        self.heard = Heard()
        self.path = socket_path
        self.refuse_below_attempt = 0
        self.heartbeat_s = 5.0
        self.mode = mode
        self._marks = marks
        self._wishes = list(wishes)
        self._served = self._marked = 0
        self._open: Order | None = None
        self._lock = threading.Lock()
        super().__init__(socket_path)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer one call."""
        with self._lock:
            self.heard.calls += 1
            status, answer = self._take(called(path), body)
        return status, json.dumps(answer).encode()

    def _take(self, call: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        heard = self.heard
        if call == "register":
            message = Register.from_json(body)
            heard.registers.append(message)
            if message.attempt < self.refuse_below_attempt:
                return 409, {"error": "an older attempt", "kind": "fenced"}
            self._open = None
            done = Registered(
                run=message.run,
                incarnation=message.incarnation,
                attempt=message.attempt,
                epoch=1,
                heartbeat_s=self.heartbeat_s,
            )
            return 200, done.to_json()
        if not heard.registers and call == "order":
            return 404, {"error": "unknown run"}
        if call == "progress":
            heard.progress.append(Progress.from_json(body))
            self._close_if_late(heard.progress[-1].step)
        elif call == "heartbeat":
            heard.heartbeats.append(Heartbeat.from_json(body))
            return 200, HeartbeatAnswer(heartbeat_s=self.heartbeat_s).to_json()
        elif call == "transitions":
            self._follow(Transition.from_json(body))
        elif call == "finish":
            heard.finishes.append(Finish.from_json(body))
        elif call == "order":
            return 200, Orders(order=self._next_order(), epoch=1, mode=self.mode).to_json()
        return 200, {}

    def _close_if_late(self, step: int) -> None:
        """Close an order past its time; one that nobody may have heard or judged yet stays."""
        if self._open and self._marked == self._served:
            at = self._wishes[self._served - 1].at
            if step > max(at, self._open.valid_until_step):
                self._open = None

    def _follow(self, transition: Transition) -> None:
        self.heard.transitions.append(transition)
        mine = self._open is not None and transition.switch_id == self._open.switch_id
        if mine and transition.state in FINAL:
            self._open = None

    def _next_order(self) -> Order | None:
        """The open order, or the next wish as one."""
        if self._open is None and self._served < len(self._wishes):
            wish, register = self._wishes[self._served], self.heard.registers[-1]
            last = wish.at - wish.late_by
            self._open = Order(
                switch_id=wish.switch_id or str(uuid.uuid4()),
                epoch=wish.epoch,
                run=wish.run or register.run,
                attempt=wish.attempt or register.attempt,
                point=str(wish.layout),
                layout=wish.layout,
                ranks=wish.ranks,
                not_before_step=min(wish.at, last),
                valid_until_step=last,
                mode=wish.mode,
                placement=wish.placement,
                reason="the test asks for it",
                wakes_at=_later(wish.wakes_in_s) if wish.wakes_in_s is not None else None,
            )
            self._served += 1
        elif self._open is not None:
            # The second fetch proves that the answer of the first has arrived.
            (self._marks / f"order-{self._served}").touch()
            self._marked = self._served
        return self._open

    def states(self, switch_id: str | None = None) -> list[SwitchState]:
        """The states reported, of one plan or all; the repeat that adds the pace is none."""
        steps = (each for each in self.heard.transitions if AT_PACE not in each.evidence)
        return [each.state for each in steps if switch_id in (None, each.switch_id)]

    def paces(self) -> list[tuple[SwitchState, float, float]]:
        """Of every switch that was told to be at its pace: state, total_s, at_pace_s."""
        told = (each for each in self.heard.transitions if AT_PACE in each.evidence)
        return [(each.state, each.evidence["total_s"], each.evidence[AT_PACE]) for each in told]


def _later(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


SLOW_S = 300.0
"""A slow answer takes so long."""


class Misbehaving(UnixHttp):
    """A server that breaks the protocol in chosen ways, one after the other."""

    def __init__(self, socket_path: Path, how: tuple[str, ...]) -> None:
        """Choose from slow, garbage, not_json, list, wrong_types, errors, refuses, unknown."""
        self.calls = 0
        self._how = how
        self._over = threading.Event()
        super().__init__(socket_path)

    def __exit__(self, *error: object) -> None:
        """Stop serving; who still waits for an answer gets one."""
        self._over.set()
        super().__exit__(*error)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer one call, badly."""
        how = self._how[self.calls % len(self._how)]
        self.calls += 1
        if how == "slow":
            self._over.wait(SLOW_S)
        answers = {
            "slow": (200, b"{}"),
            "garbage": (200, b"\x00\xff\x17" * 100),
            "not_json": (200, b"<html>404 of somebody else's server</html>"),
            "list": (200, b"[1, 2, 3]"),
            "wrong_types": (200, b'{"order": {"plan": 7, "epoch": "x"}, "epoch": []}'),
            "errors": (500, b'{"error": "no"}'),
            "refuses": (409, b'{"error": "no", "kind": "fenced"}'),
            "unknown": (404, b'{"error": "who?"}'),
        }
        return answers[how]
