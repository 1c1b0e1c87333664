"""A node's own meter: Redfish over TLS, ipmitool's words, slow and wrong answers."""

import math
import stat
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_api import certify
from tests.daemon.waiting import wait_for
from tests.telemetry.sources.redfish_server import CHASSIS, PASSWORD, USER, Controller, serving
from wattmesh.controller.cli.doctor.power_checks import own_meter, power
from wattmesh.controller.daemon.power import power_source
from wattmesh.controller.settings.read import parse
from wattmesh.errors import SettingsInvalid, SourceUnavailable
from wattmesh.telemetry.fake_nvml.build import built
from wattmesh.telemetry.readings import Component
from wattmesh.telemetry.sources import ipmi, node_meter
from wattmesh.telemetry.sources.chain import Chain
from wattmesh.telemetry.sources.ipmi import Ipmi
from wattmesh.telemetry.sources.node_meter import Denied, NodeMeter
from wattmesh.telemetry.sources.redfish import Redfish

NEW = {"PowerWatts": {"Reading": 5612.5}}
OLD = {"PowerControl": [{"PowerConsumedWatts": 5610, "PowerMetrics": {"IntervalInMin": 20}}]}

SAID = """
    Instantaneous power reading:                  5608 Watts
    Minimum during sampling period:                112 Watts
    Maximum during sampling period:               7350 Watts
    Average power reading over sample period:     4711 Watts
    IPMI timestamp:                           11/27/26 07:12:44 UTC    Sampling period:                          00000010 Seconds.
    Power reading state is:                   activated

"""  # noqa: E501 - as ipmitool 1.8.19 prints it (lib/ipmi_dcmi.c)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of localhost that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("bmc")
    certify(folder / "ca.pem", folder / "key.pem")
    return folder / "ca.pem", folder / "key.pem"


@pytest.fixture
def controller(certificate: tuple[Path, Path]) -> Iterator[Controller]:
    """A controller without any chassis yet."""
    with serving(*certificate) as held:
        yield held


@pytest.fixture
def redfish(controller: Controller, certificate: tuple[Path, Path]) -> Iterator[Redfish]:
    """One that asks it."""
    asks = ask(controller, certificate)
    yield asks
    asks.close()


def ask(controller: Controller, certificate: tuple[Path, Path], **changes: Any) -> Redfish:
    """Make one that asks, as a settings file would."""
    values = {
        "username": USER,
        "password": lambda: PASSWORD,
        "ca_file": str(certificate[0]),
        **changes,
    }
    return Redfish(controller.url, **values)


def told(name: str, value: float, **beside: Any) -> dict[str, Any]:
    """A chassis whose new resource has one sensor."""
    return {"EnvironmentMetrics": {"PowerWatts": {name: value, **beside}}}


@pytest.mark.parametrize(
    ("resources", "watts"),
    [
        ({"EnvironmentMetrics": NEW}, 5612.5),
        ({"Power": OLD}, 5610.0),
        ({"EnvironmentMetrics": NEW, "Power": OLD}, 5612.5),
        ({"EnvironmentMetrics": {}, "Power": OLD}, 5610.0),
        ({"EnvironmentMetrics": {"PowerWatts": {"Reading": None}}, "Power": OLD}, 5610.0),
        ({"EnvironmentMetrics": {"PowerWatts": {"Reading": 0}}, "Power": OLD}, 5610.0),
        ({"EnvironmentMetrics": {"PowerWatts": {"Reading": "5612"}}, "Power": OLD}, 5610.0),
        (told("Reading", 5.6, ReadingUnits="kW") | {"Power": OLD}, 5610.0),
        (told("Reading", 5612.5, ReadingUnits="W"), 5612.5),
        (told("Reading", 5612.5, Status={"State": "UnavailableOffline"}) | {"Power": OLD}, 5610.0),
        (told("Reading", 5612.5, Status={"State": "Enabled"}), 5612.5),
        (
            {"Power": {"PowerControl": [*OLD["PowerControl"], {"PowerConsumedWatts": 350}]}},
            5610.0,
        ),
    ],
)
def test_the_one_chassis_that_tells_a_power_is_the_node(
    controller: Controller, redfish: Redfish, resources: dict[str, Any], watts: float
) -> None:
    """By the new resource, else by the old one; parts and chassis without a meter do not count."""
    controller.chassis("1", **resources)
    controller.chassis("gpu0", inside="1", EnvironmentMetrics={"PowerWatts": {"Reading": 690}})
    controller.chassis("fans")
    assert redfish.power_w() == watts
    controller.asked.clear()
    assert redfish.power_w() == watts
    # What was found is kept: no walk through all chassis each time.
    assert len(controller.asked) <= 3
    assert all(known for _, known in controller.asked)


@pytest.mark.parametrize("linked", [{"@odata.id": f"{CHASSIS}/1/Missing"}, None])
def test_a_link_to_what_is_not_there_is_no_fault(
    controller: Controller, redfish: Redfish, linked: dict[str, str] | None
) -> None:
    """The older resource is read then; one that is there and fails is a fault."""
    controller.chassis("1", Power=OLD)
    controller.resources[f"{CHASSIS}/1"]["EnvironmentMetrics"] = linked
    assert redfish.power_w() == 5610.0
    controller.answers[f"{CHASSIS}/1/Missing"] = (503, b"busy")
    if linked is not None:
        with pytest.raises(SourceUnavailable, match="answered 503"):
            redfish.power_w()


def test_which_of_several_chassis_is_the_node_is_asked_and_not_guessed(
    controller: Controller, certificate: tuple[Path, Path]
) -> None:
    """One of two would be too little or too much; named ones are summed, unknown names refused."""
    controller.chassis("left", Power=OLD)
    controller.chassis("right", EnvironmentMetrics=NEW)
    with pytest.raises(SourceUnavailable, match=r"left 5610 W, right 5612\.5 W.*chassis"):
        ask(controller, certificate).power_w()
    both = ask(controller, certificate, chassis=("left", "right"))
    assert both.power_w() == 5610 + 5612.5
    assert ask(controller, certificate, chassis=("left", "left")).power_w() == 5610
    with pytest.raises(SourceUnavailable, match="no chassis middle; it has left, right"):
        ask(controller, certificate, chassis=("middle",)).power_w()


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        (CHASSIS, (401, b"{}"), "refuses user"),
        (f"{CHASSIS}/1/Power", (403, b"{}"), "refuses user"),
        (CHASSIS, (404, b"{}"), "answered 404"),
        (f"{CHASSIS}/1", (503, b"busy"), "answered 503"),
        (f"{CHASSIS}/1/Power", (302, b""), "answered 302"),
        (f"{CHASSIS}/1/Power", (200, b"<html>"), "no JSON object"),
        (f"{CHASSIS}/1/Power", (200, b"[1]"), "no JSON object"),
        (f"{CHASSIS}/1/Power", (200, b"[" * 100_000), "no JSON object"),
        (f"{CHASSIS}/1/Power", (200, b" " * (5 << 20)), "no JSON object"),
        (f"{CHASSIS}/1/Power", (200, b'{"PowerControl": 7}'), "no chassis of"),
        (
            f"{CHASSIS}/1/Power",
            (200, b'{"PowerControl": [{"PowerConsumedWatts": NaN}]}'),
            "no chassis of",
        ),
        (
            f"{CHASSIS}/1/Power",
            (200, b'{"PowerControl": [{"PowerConsumedWatts": 1e999}]}'),
            "no chassis of",
        ),
        (
            f"{CHASSIS}/1/Power",
            (
                200,
                b'{"PowerControl": [{"PowerConsumedWatts": 90, "Status": {"State": "Disabled"}}]}',
            ),
            "no chassis of",
        ),
        (
            f"{CHASSIS}/1/Power",
            (
                200,
                b'{"PowerControl": [{"PowerConsumedWatts": 90}, {"PowerConsumedWatts": 800}]}',
            ),
            "which of them is the whole",
        ),
        (CHASSIS, (200, b'{"Members": [{}]}'), "without @odata.id"),
        (CHASSIS, (200, b'{"Members": [{"@odata.id": "http://127.0.0.1:1/x"}]}'), "elsewhere"),
        (CHASSIS, (200, b'{"Members": [{"@odata.id": "//127.0.0.1:1/x"}]}'), "elsewhere"),
        (CHASSIS, (200, b'{"Members": []}'), "no chassis of"),
    ],
)
def test_a_controller_that_misbehaves_gives_one_sentence_and_no_watts(
    controller: Controller, redfish: Redfish, path: str, answer: tuple[int, bytes], says: str
) -> None:
    """And when it is well again it is read again, on a new connection."""
    controller.chassis("1", Power=OLD)
    controller.answers[path] = answer
    with pytest.raises(SourceUnavailable, match=says) as refused:
        redfish.power_w()
    assert isinstance(refused.value, Denied) == (answer[0] in {401, 403})
    assert PASSWORD not in str(refused.value)
    controller.answers.clear()
    assert redfish.power_w() == 5610


def test_a_certificate_that_nobody_trusts_gets_no_password(
    controller: Controller, certificate: tuple[Path, Path]
) -> None:
    """The sentence names the key of the settings; the controller never heard of us."""
    controller.chassis("1", Power=OLD)
    with pytest.raises(SourceUnavailable, match=r"not trusted.*ca_file"):
        ask(controller, certificate, ca_file="").power_w()
    assert not controller.asked


def test_pages_of_chassis_are_followed(controller: Controller, redfish: Redfish) -> None:
    """To the last, and round in circles only so long."""
    controller.chassis("1", Power=OLD)
    controller.resources[f"{CHASSIS}?page=2"] = controller.resources.pop(CHASSIS)
    controller.resources[CHASSIS] = {"Members": [], "Members@odata.nextLink": f"{CHASSIS}?page=2"}
    assert redfish.power_w() == 5610
    controller.resources[f"{CHASSIS}?page=2"]["Members@odata.nextLink"] = CHASSIS
    redfish.close()
    assert redfish.power_w() == 5610


def program(folder: Path, body: str) -> str:
    """Write a program that stands in for ipmitool, and prints what that does."""
    path = folder / "ipmitool"
    path.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_ipmitool_is_asked_without_a_password_on_its_command_line(tmp_path: Path) -> None:
    """On the node by the device, else over the network with a file."""
    body = f"print({SAID!r})\nopen({str(tmp_path / 'argv')!r}, 'w').write(' '.join(sys.argv[1:]))"
    run = program(tmp_path, body)
    assert Ipmi(program=run).power_w() == 5608
    assert (tmp_path / "argv").read_text() == "-I open dcmi power reading"
    secret = tmp_path / "secret"
    far = Ipmi(address="n17-bmc", username=USER, password_file=str(secret), program=run)
    assert far.power_w() == 5608
    assert f"-H n17-bmc -L USER -N 3 -R 2 -U {USER} -f {secret}" in (tmp_path / "argv").read_text()


@pytest.mark.parametrize(
    ("said", "wrong", "says", "denied"),
    [
        (SAID.replace("activated", "deactivated"), "", "dcmi power activate", False),
        ("", "DCMI request failed because: Invalid command (c1)\n", "Invalid command", False),
        ("", "Could not open device at /dev/ipmi0 or /dev/ipmi/0\n", "ipmi_devintf", True),
        ("", "Error: Unable to establish IPMI v2 / RMCP+ session\n", "RMCP", False),
        ("", "> Error: RAKP 2 HMAC is invalid\n", "password_file", True),
        (SAID.replace("5608", "-12"), "", "tells no power", False),
        (SAID.replace("5608", "65535"), "", "stands for no reading", False),
        (SAID.replace("state is", "state was"), "", "tells no power", False),
        ("", "", "it said nothing", False),
    ],
)
def test_what_ipmitool_says_else_is_no_reading(
    said: str, wrong: str, says: str, *, denied: bool
) -> None:
    """One sentence, with what to do."""
    with pytest.raises(SourceUnavailable, match=says) as refused:
        ipmi.reading(said, wrong)
    assert isinstance(refused.value, Denied) == denied


def test_an_ipmitool_that_is_not_there_or_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended after its limit."""
    with pytest.raises(SourceUnavailable, match="not installed"):
        Ipmi(program=str(tmp_path / "none")).power_w()
    monkeypatch.setattr(ipmi, "LIMIT_S", 0.2)
    with pytest.raises(SourceUnavailable, match="has not answered"):
        Ipmi(program=program(tmp_path, "time.sleep(60)")).power_w()


class Asked:
    """A controller whose answers a test gives one by one, and a clock."""

    def __init__(self) -> None:
        """Ask nothing yet."""
        self.now_s = 1000.0
        self.next: Future[float] = Future()
        self.meter = NodeMeter("redfish", "n1", self.ask, monotonic=lambda: self.now_s)

    def ask(self) -> float:
        """Wait for the test's answer."""
        try:
            return self.next.result(60)
        finally:
            self.next = Future()

    @property
    def waits(self) -> bool:
        """Whether the meter has asked and has no answer yet."""
        return self.meter._asked is not None

    def answer(self, watts: float | Exception) -> None:
        """Let it answer, and let the meter hear it."""
        self.read()
        heard = self.meter._asked
        assert heard is not None
        if isinstance(watts, Exception):
            self.next.set_exception(watts)
        else:
            self.next.set_result(watts)
        wait_for(heard.done, "an answer")
        self.read()

    def read(self) -> list[float | None]:
        """Read the meter; nothing where it tells nothing."""
        with suppress(SourceUnavailable):
            return [each.power_w for each in self.meter.read()]
        return []

    def later(self, seconds: float) -> "Asked":
        """Let time pass."""
        self.now_s += seconds
        return self


@pytest.fixture
def asked() -> Iterator[Asked]:
    """A controller, and a meter that asks it."""
    each = Asked()
    yield each
    if not each.next.done():
        each.next.set_result(1.0)
    each.meter.close()


def test_a_slow_controller_delays_no_reading_and_its_answer_counts_a_minute(asked: Asked) -> None:
    """The newest answer keeps its own time, and then the power is unknown."""
    assert asked.read() == []
    asked.answer(5600.0)
    (first,) = asked.meter.read()
    assert (first.power_w, first.component) == (5600.0, Component.NODE)
    assert first.gpu_uuid == "node:n1:redfish"
    assert asked.later(59).read() == [5600.0]
    assert asked.meter.read()[0].monotonic_s == first.monotonic_s
    assert asked.later(2).read() == []
    asked.answer(4200.0)
    assert asked.read() == [4200.0]


@pytest.mark.parametrize("watts", [0.0, -3.0, math.nan, math.inf, 2e5])
def test_watts_that_cannot_be_are_unknown_and_never_zero(asked: Asked, watts: float) -> None:
    """A dead sensor says 0; a node that runs this does not."""
    asked.answer(watts)
    with pytest.raises(SourceUnavailable, match="which cannot be"):
        asked.meter.read()


def test_a_controller_that_refuses_us_is_left_alone(asked: Asked) -> None:
    """Many lock an account after some failures. One that fails otherwise is asked less often."""
    asked.answer(Denied("401"))
    for _ in range(80):
        asked.later(10).read()
        assert not asked.waits
    asked.later(200).read()
    for pause_s in (20, 40, 80, 160, 300, 300):
        asked.answer(SourceUnavailable("503"))
        asked.later(pause_s - 1).read()
        assert not asked.waits
        asked.later(1).read()
        assert asked.waits
    asked.answer(500.0)
    assert asked.read() == [500.0]


def test_a_meter_that_asks_again_at_once_is_caught(
    monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    """The sabotaged twin of the test above."""
    monkeypatch.setattr(node_meter, "REFUSED_S", 10.0)
    with pytest.raises(AssertionError):
        test_a_controller_that_refuses_us_is_left_alone(asked)


SETTINGS = """
[power]
source = "nvml"
library = "{library}"
[power.node_meter]
protocol = "redfish"
address = "{address}"
username = "wattmesh"
password_file = "{secret}"
ca_file = "{ca}"
"""


def test_the_settings_open_it_beside_the_gpus_and_doctor_tells_what_it_reads(
    tmp_path: Path, controller: Controller, certificate: tuple[Path, Path]
) -> None:
    """One device of the chain, that the ledger leaves out; and the sentence of a wrong password."""
    controller.chassis("1", Power=OLD)
    secret = tmp_path / "bmc"
    secret.write_text(f"{PASSWORD}\n")
    secret.chmod(0o600)
    text = SETTINGS.format(
        library=built().library, address=controller.url, secret=secret, ca=certificate[0]
    )
    settings = parse(text, where=tmp_path / "wattmesh.toml")
    source = power_source(settings)
    assert isinstance(source, Chain)
    meter = source.sources[1]

    def told() -> bool:
        with suppress(SourceUnavailable):
            return bool(meter.read())
        return False

    wait_for(told, "the node's meter")
    source.close()
    found = {each.check: each for each in power(settings)}["power by redfish"]
    assert "own meter, 5610 W" in found.text
    agents = parse(text.replace('"nvml"\nlibrary', '"agents"\nlibrary'), where=tmp_path / "w.toml")
    (of_node,) = own_meter(agents)
    assert of_node.text == found.text
    secret.write_text("wrong\n")
    found = {each.check: each for each in power(settings)}["power by redfish"]
    assert "refuses user 'wattmesh' (401)" in found.text
    assert "mend power.node_meter.username" in found.do


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("https://", "http://n17"), "in the clear"),
        (lambda text: text.replace("https://", "https://a:b@"), "user or password"),
        (lambda text: text.replace("https://", ""), "is not an address"),
        (lambda text: text.replace('username = "wattmesh"\n', ""), "are given together"),
        (lambda text: text.replace('"nvml"', '"none"'), "is only read when source"),
        (lambda text: text.replace('"redfish"', '"ipmi"'), "no host name"),
        (
            lambda text: text.replace('"redfish"', '"ipmi"').replace("https://localhost:1", "-H"),
            "no host name",
        ),
        (
            lambda text: text.replace('"redfish"', '"ipmi"').replace("https://localhost:1", ""),
            "needs no account",
        ),
    ],
)
def test_a_mistake_in_the_settings_is_named(
    tmp_path: Path, change: Callable[[str], str], says: str
) -> None:
    """With its key."""
    secret = tmp_path / "bmc"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    text = SETTINGS.format(library=secret, address="https://localhost:1", secret=secret, ca=secret)
    parse(text, where=tmp_path / "wattmesh.toml")
    with pytest.raises(SettingsInvalid, match=says):
        parse(change(text), where=tmp_path / "wattmesh.toml")
