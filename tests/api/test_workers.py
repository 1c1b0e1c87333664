"""The threads that carry out calls: fair between users, bounded, and not for who has hung up."""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from tests.api.conftest import Served
from tests.api.raw import answer, post
from tests.builders import messages
from wattmesh.controller.api import calls
from wattmesh.controller.api.workers import MOST_WAITING, Caller, Crowded, Workers

ANN, BOB, CID = (Caller(name=f"uid {uid}") for uid in (1, 2, 3))
OPERATOR = Caller(name="uid 0", trusted=True, unbound=True)
NODE = Caller(name="node n1", trusted=True)
LIMIT_S = 60.0


def trying(body: Callable[[Workers, threading.Event], Awaitable[None]], threads: int = 4) -> None:
    """Run a test on a loop of its own; what waits for the event goes on in the end."""
    gate, workers = threading.Event(), Workers(threads, "test")

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            try:
                await body(workers, gate)
            finally:
                gate.set()

    asyncio.run(run())
    workers.close()


def hold(workers: Workers, gate: threading.Event, caller: Caller) -> "asyncio.Task[Any]":
    """Make a call that takes a thread until the gate opens."""
    return asyncio.ensure_future(workers.do(caller, lambda: gate.wait(LIMIT_S)))


def test_a_flood_of_some_users_leaves_threads_to_the_others() -> None:
    """Half for one user; one is left to operators and agents, however many users there are."""

    async def body(workers: Workers, gate: threading.Event) -> None:
        held = [hold(workers, gate, ANN) for _ in range(50)]
        await asyncio.sleep(0)
        assert await workers.do(BOB, lambda: "bob") == "bob"
        held += [hold(workers, gate, BOB) for _ in range(50)]
        await asyncio.sleep(0)
        for each in (OPERATOR, NODE):
            assert await workers.do(each, lambda: "done") == "done"
        refused = asyncio.ensure_future(workers.do(CID, lambda: "cid"))
        assert await workers.do(OPERATOR, lambda: "done") == "done"
        assert not refused.done()
        gate.set()
        assert await refused == "cid"
        assert all(await asyncio.gather(*held))

    trying(body)


def test_queues_take_turns() -> None:
    """Who asks once waits for one call of each other, not for all that were there before."""
    order: list[str] = []

    async def body(workers: Workers, gate: threading.Event) -> None:
        held = [hold(workers, gate, OPERATOR)]
        await asyncio.sleep(0)
        told = [
            asyncio.ensure_future(workers.do(caller, partial(order.append, caller.name)))
            for caller in (*[ANN] * 20, BOB, CID)
        ]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*held, *told)

    trying(body, threads=1)
    assert order == [ANN.name, BOB.name, CID.name, *[ANN.name] * 19]


def test_a_queue_has_a_bound_and_who_hangs_up_frees_it() -> None:
    """One more is told so; whoever is gone takes no place, and its call is never carried out."""
    done: list[int] = []

    async def body(workers: Workers, gate: threading.Event) -> None:
        there = [True]
        leaving = Caller(name=ANN.name, listens=lambda: there[0])
        held = [hold(workers, gate, ANN) for _ in range(2)]
        await asyncio.sleep(0)
        queued = [
            asyncio.ensure_future(workers.do(leaving, lambda: done.append(1)))
            for _ in range(MOST_WAITING)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Crowded, match="uid 1 wait already"):
            await workers.do(ANN, lambda: None)
        assert calls.failure(Crowded("x"), "/").headers["retry-after"] == "2"
        there[0] = False
        late = asyncio.ensure_future(workers.do(ANN, lambda: "late"))
        gate.set()
        assert await late == "late"
        told = await asyncio.gather(*queued, return_exceptions=True)
        assert {type(each) for each in told} == {ClientDisconnect}
        await asyncio.gather(*held)

    trying(body)
    assert done == []


def test_an_error_is_the_callers_and_frees_the_thread() -> None:
    """Nothing that a call does takes a share for good."""

    async def body(workers: Workers, gate: threading.Event) -> None:
        for _ in range(9):
            with pytest.raises(ZeroDivisionError):
                await workers.do(ANN, lambda: 1 // 0)
        assert await workers.do(ANN, lambda: 1) == 1

    trying(body)


@pytest.mark.parametrize("kind", ["progress", "heartbeat"])
def test_a_large_body_is_read_by_a_worker(
    served: Served, raw: socket.socket, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The one thread that hears everybody parses nothing that takes long."""
    served.register()
    caplog.set_level(logging.DEBUG, logger=calls.__name__)
    body = b'{"loss": NaN, "x": [' + b",".join([b"1"] * 10_000) + b"]}"
    raw.sendall(post(body).replace(b"/progress", f"/{kind}".encode()))
    assert answer(raw)[0] == 422
    (read,) = {each.threadName for each in caplog.records if "counts as null" in each.message}
    assert read is not None
    assert read.startswith("api_")


def test_a_call_whose_sender_hung_up_is_not_carried_out(served: Served) -> None:
    """All threads wait for the journal; a report comes, and its sender goes before its turn."""
    served.register()
    with ExitStack() as held:
        with served.journal.database.writing():
            waiting = [send(held, served, seq) for seq in range(1, 5)]
            hear_all(served)
            send(held, served, 99).close()
            hear_all(served)
        assert [answer(each)[0] for each in waiting] == [200] * 4
        assert answer(send(held, served, 5))[0] == 200
    row = served.journal.runs.find(messages.RUN, served.clock.wall)
    assert row is not None
    assert row.step == 50


def send(held: ExitStack, served: Served, seq: int) -> socket.socket:
    """Report on a connection of its own; the answer is not read."""
    client = held.enter_context(socket.socket(socket.AF_UNIX))
    client.settimeout(LIMIT_S)
    client.connect(str(served.socket))
    client.sendall(post(json.dumps(messages.progress(seq=seq, step=10 * seq)).encode()))
    return client


def hear_all(served: Served) -> None:
    """Return when the server has heard all that was sent and hung up: its thread goes in turns."""
    for _ in range(3):
        assert served.get("/healthz").status == 200
