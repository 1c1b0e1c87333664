"""Hostile deliveries at the agents' door (`make fuzz` has no end), and a hostile answer."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.hostile import agents
from benchmarks.hostile.__main__ import SEED, report_of
from wattmesh.controller.agent.link import LONGEST_ANSWER, ControllerLink
from wattmesh.controller.cycle import fleet
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.telemetry.energy.delivery import Report

COUNT = 300


def test_typed_but_extreme_deliveries_break_nothing_and_cost_others_nothing() -> None:
    """A real daemon: no crash, no loop that stands still, no honest delivery refused."""
    tried = agents.measure(SEED, COUNT)
    assert tried.crashes == ()
    assert (tried.inputs, tried.others_refused) == (COUNT, 0)
    missed = [goal.name for goal in report_of([tried], SEED).goals if not goal.ok]
    assert missed == []


def test_the_door_as_it_was_let_them_in() -> None:
    """Deliveries of the same making, read without the ranges: one ends the sampler's turn."""
    for number in range(10 * COUNT):
        _, _, body = agents.hostile(f"{SEED}:{number}")
        try:
            report = Report.from_json(body)
            for name, facts in report.devices.items():
                fleet._reading(name, facts)
        except InputInvalid:
            continue
        except Exception:
            break
    else:
        pytest.fail("no delivery broke anything")
    assert agents.hostile("15:3") != agents.hostile("15:4")


def test_an_answer_of_the_controller_is_taken_whole_or_not(tmp_path: Path) -> None:
    """As much as is ever answered is taken, and not one byte more; and not a part of one."""
    whole, endless = bytes(LONGEST_ANSWER), bytes(LONGEST_ANSWER + 1)
    answers = (b"\r\n" + whole, b"\r\n" + endless, b"Content-Length: 9\r\n\r\n{}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "c.sock"))
        listener.listen()

        def answer() -> None:
            for answered in answers:
                client, _ = listener.accept()
                with client, suppress(OSError):
                    client.recv(4096)
                    client.sendall(b"HTTP/1.1 200 OK\r\n" + answered)

        threading.Thread(target=answer, daemon=True).start()
        link = ControllerLink(f"unix://{tmp_path}/c.sock")
        assert link.call("GET", "/", limit_s=60.0).content == whole
        for words in ("an endless answer", "IncompleteRead"):
            with pytest.raises(SourceUnavailable, match=words):
                link.call("GET", "/", limit_s=60.0)
