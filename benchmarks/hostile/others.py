"""Somebody ordinary before the same door, all the while: what is refused of him is counted."""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.builders import messages
from tests.daemon.process import Answer, asked

EVERY_S = 0.05

Ask = Callable[[str, str, Any], Answer]
"""Makes one call: method, address, body."""


def asking(connect: Callable[[], socket.socket]) -> Ask:
    """Give what asks over connections that somebody else makes."""

    def ask(method: str, target: str, body: Any = None) -> Answer:
        connection = http.client.HTTPConnection("w")
        connection.sock = connect()
        return asked(connection, method, target, body)

    return ask


@contextmanager
def training(ask: Ask, reads: str) -> Iterator[list[str]]:
    """Be an ordinary job until the block ends; lists what was refused.

    Args:
        ask: its way to the door.
        reads: what it asks for between its reports.
    """
    refused: list[str] = []
    over = threading.Event()
    answer = ask("POST", f"/v1/runs/{messages.RUN}/register", messages.register())
    assert answer.status == 200, answer.body

    def live() -> None:
        seq = 0
        while not over.wait(EVERY_S):
            seq += 1
            calls = (
                ("POST", f"/v1/runs/{messages.RUN}/progress", messages.progress(seq=seq, step=seq)),
                ("POST", f"/v1/runs/{messages.RUN}/heartbeat", messages.heartbeat()),
                ("GET", reads, None),
            )
            for method, target, body in calls:
                try:
                    found = ask(method, target, body)
                except OSError as error:
                    refused.append(f"{target}: {error}")
                    continue
                if found.status != 200:
                    refused.append(f"{target}: {found.body}")

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield refused
    finally:
        over.set()
        thread.join()
