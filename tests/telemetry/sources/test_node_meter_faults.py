"""What a controller may say or do to the process that reads GPUs beside it."""

import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.telemetry.sources.redfish_server import CHASSIS, USER, Controller
from tests.telemetry.sources.test_node_meter import (
    OLD,
    SAID,
    Asked,
    ask,
    asked,
    certificate,
    controller,
    program,
    redfish,
)
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.sources import node_meter
from wattmesh.telemetry.sources import redfish as redfish_module
from wattmesh.telemetry.sources.ipmi import Ipmi
from wattmesh.telemetry.sources.node_meter import Denied
from wattmesh.telemetry.sources.redfish import Redfish

__all__ = ["asked", "certificate", "controller", "redfish"]

POWER = f"{CHASSIS}/1/Power"


@pytest.mark.parametrize("digits", [10, 400, 5000])
def test_a_whole_number_without_end_is_no_power(
    controller: Controller, redfish: Redfish, digits: int
) -> None:
    """JSON allows it, and no float holds it."""
    controller.chassis("1", Power=OLD)
    told = b'{"PowerControl": [{"PowerConsumedWatts": 1' + b"0" * digits + b"}]}"
    controller.answers[POWER] = (200, told)
    with pytest.raises(SourceUnavailable):
        redfish.power_w()


def test_a_number_that_is_taken_as_it_is_is_caught(
    monkeypatch: pytest.MonkeyPatch, controller: Controller, redfish: Redfish
) -> None:
    """The sabotaged twin of the test above."""
    monkeypatch.setattr(redfish_module, "MOST_WATTS", float("inf"))
    with pytest.raises(OverflowError):
        test_a_whole_number_without_end_is_no_power(controller, redfish, 400)


def test_an_answer_that_nobody_foresaw_is_a_trouble_of_the_meter_alone(asked: Asked) -> None:
    """The GPUs of the same step are read, and the controller is asked again."""
    asked.answer(OverflowError("int too large to convert to float"))
    with pytest.raises(SourceUnavailable, match="too large"):
        asked.meter.read()
    asked.later(20).answer(5600.0)
    assert asked.read() == [5600.0]


def test_a_meter_that_lets_any_error_through_is_caught(
    monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    """The sabotaged twin of the test above."""
    monkeypatch.setattr(node_meter, "Exception", SourceUnavailable, raising=False)
    with pytest.raises(OverflowError):
        test_an_answer_that_nobody_foresaw_is_a_trouble_of_the_meter_alone(asked)


def test_a_sentence_is_short_whatever_names_a_controller_gives(
    controller: Controller, certificate: tuple[Path, Path], asked: Asked
) -> None:
    """An agent delivers it with its energy: a delivery that is too large would be refused."""
    for each in "ab":
        controller.chassis(each * 100_000, Power=OLD)
    with pytest.raises(SourceUnavailable) as refused:
        ask(controller, certificate, chassis=("c",)).power_w()
    assert len(str(refused.value)) > 100_000
    asked.answer(refused.value)
    with pytest.raises(SourceUnavailable) as told:
        asked.meter.read()
    assert len(str(told.value)) == node_meter.LONGEST_TROUBLE


def test_a_server_that_speaks_no_tls_says_nothing_of_its_certificate() -> None:
    """Another file of certificates would not help."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                connection.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SourceUnavailable, match="does not answer") as broken:
            Redfish(f"https://127.0.0.1:{server.getsockname()[1]}").power_w()
        thread.join()
    assert "ca_file" not in str(broken.value)


def trickle() -> Iterable[bytes]:
    """Send a right answer, after a second of blanks."""
    for _ in range(100):
        yield b" "
        time.sleep(0.01)
    yield b'{"PowerControl": [{"PowerConsumedWatts": 5610}]}'


def endless() -> Iterable[bytes]:
    """Send blanks, and never an end."""
    while True:
        yield b" " * (1 << 16)


@pytest.mark.parametrize(("pieces", "limit_s"), [(trickle, 0.05), (endless, 120.0)])
def test_a_body_without_end_ends(
    monkeypatch: pytest.MonkeyPatch,
    controller: Controller,
    redfish: Redfish,
    pieces: Callable[[], Iterable[bytes]],
    limit_s: float,
) -> None:
    """By the time of the whole question, or by its bytes; then it is asked anew."""
    controller.chassis("1", Power=OLD)
    controller.streams[POWER] = pieces
    with monkeypatch.context() as patch:
        patch.setattr(redfish_module, "QUESTION_S", limit_s)
        with pytest.raises(SourceUnavailable, match=r"has not told the power|no JSON object"):
            redfish.power_w()
    controller.streams.clear()
    assert redfish.power_w() == 5610


def test_a_question_without_a_limit_is_caught(
    monkeypatch: pytest.MonkeyPatch, controller: Controller, redfish: Redfish
) -> None:
    """The sabotaged twin of the test above: it waits to the last byte."""
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_body_without_end_ends(monkeypatch, controller, redfish, trickle, 1000.0)


TALKS = f"""
talks = "-v" in sys.argv
if sys.argv[-4] != "right":
    if talks:
        sys.stderr.write("Loading IANA PEN Registry...\\n> RAKP 2 HMAC is invalid\\n")
    sys.stderr.write("Error: Unable to establish IPMI v2 / RMCP+ session\\n")
    sys.exit(1)
if talks:
    sys.stderr.write("Invalid completion code received: Insufficient privilege level\\n")
    sys.stderr.write("Discovered IPMB address 0x0\\n")
print({SAID!r})
"""
"""As ipmitool 1.8.19 does: why it was refused stands only in its detailed output."""


def test_a_wrong_password_is_known_as_one_by_ipmi(tmp_path: Path) -> None:
    """Or the account is locked by questions every few minutes."""
    run = program(tmp_path, TALKS)
    far = Ipmi(address="n17-bmc", username=USER, password_file="wrong", program=run)
    with pytest.raises(Denied, match=r"RAKP 2 HMAC is invalid.*password_file"):
        far.power_w()
    far = Ipmi(address="n17-bmc", username=USER, password_file="right", program=run)
    assert far.power_w() == 5608


def test_an_ipmitool_that_is_not_asked_why_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sabotaged twin of the test above."""
    whole = Ipmi.command
    monkeypatch.setattr(
        Ipmi, "command", lambda self: [each for each in whole(self) if each != "-v"]
    )
    with pytest.raises(SourceUnavailable, match="tells no power") as told:
        test_a_wrong_password_is_known_as_one_by_ipmi(tmp_path)
    assert not isinstance(told.value, Denied)
