"""The door of the nodes' agents: typed but extreme deliveries of one node, to a real daemon.

Another node delivers honestly all the while; what is refused of it, and whether its watts stay on
the screen, is what the hostile one did to others. Invariant: a crash is any answer but success or a
refusal with a sentence, an end or a bug of the daemon, or a loop that stands still.
"""

import copy
import json
import random
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.hostile.tried import Cost, Tried, used
from tests.daemon.process import Answer, DaemonProcess, ask, daemon
from tests.daemon.waiting import wait_for
from wattmesh.telemetry.desired import Applied, GpuControl
from wattmesh.telemetry.energy.delivery import MOST_ROWS, EnergyBatch, Report
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow

SETTINGS = '[power]\nsource = "agents"\n'

EXTREMES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400,
    -0.0, 0.5, 1e15, 1e308, -1e308, 5e-324, float("nan"), float("inf"), "", "a", "0", "NaN",
    "GPU-1", "n1", "..", "a\0b", "\ud800", "\x1b[31m", "\u202ereversed", "x" * 300, "x" * 70_000,
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30T00:00:00Z", "2026-01-01",
    "1969-12-31T23:59:59Z", "2400-01-01T00:00:00Z", "simulated", "run", "profiling", [], {}, [[]],
    [1], {"": ""}, {"a": {"a": {"a": {}}}}, [None] * 600, {str(key): {} for key in range(600)},
)  # fmt: skip
"""What facts become: of the right type and far out, or of another one."""

EVERY = 25
"""Hostile deliveries between two honest ones."""

HONEST_W = 321.0


def measure(seed: int, count: int) -> Tried:
    """Deliver `count` times as a hostile node; the same seed delivers the same."""
    with tempfile.TemporaryDirectory() as name, daemon(Path(name), SETTINGS) as running:
        door = _Door(running)
        door.deliver_honestly()
        for number in range(count):
            door.knock(f"{seed}:{number}")
            if number % EVERY == EVERY - 1:
                door.deliver_honestly()
        door.look()
        return Tried(
            door="agents",
            inputs=count,
            crashes=tuple(door.crashes),
            costs=tuple(door.costs),
            others_refused=door.refused,
        )


class _Door:
    """One daemon, a hostile node before it, and an honest one beside."""

    def __init__(self, running: DaemonProcess) -> None:
        self._running = running
        self._seq = 0
        self.crashes: list[str] = []
        self.costs: list[Cost] = []
        self.refused = 0

    def knock(self, number: str) -> None:
        """Make one hostile call."""
        method, target, body = hostile(number)
        text = "" if body is None else json.dumps(body)
        before = used(self._running.process.pid)
        try:
            answer = ask(self._running.socket, method, target, body)
        except OSError as error:
            self.crashes.append(f"{number}: {type(error).__name__}: {error}; {text[:300]}")
            return
        after = used(self._running.process.pid)
        if not _fine(answer):
            self.crashes.append(f"{number}: {answer.status} {answer.body}; {text[:300]}")
        cpu_s, mib = (max(0.0, one - other) for one, other in zip(after, before, strict=True))
        self.costs.append(Cost(words=f"agents {number}", nbytes=len(text), cpu_s=cpu_s, mib=mib))

    def deliver_honestly(self) -> None:
        """Deliver as the other node; count what is refused of it."""
        self._seq += 1
        body = _report("n1", self._seq, datetime.now(UTC), ("GPU-a", "GPU-b"))
        answer = ask(self._running.socket, "POST", "/v1/agents/n1/readings", body)
        self.refused += answer.body != {"ok": True, "applied": True}

    def look(self) -> None:
        """See that the daemon is well, and shows the honest node's watts."""
        self.deliver_honestly()

        def honest() -> bool:
            power = self._running.status()["power"]
            return power["total_w"] is not None and power["total_w"] >= 2 * HONEST_W

        try:
            wait_for(honest, "the honest node's watts on the screen", 60.0)
        except AssertionError as error:
            self.crashes.append(str(error))
        for target in ("/readyz", "/v1/runs", "/v1/budget", "/v1/events"):
            if self._running.get(target).status != 200:
                self.crashes.append(f"{target} does not answer")
        self.crashes += [line for line in self._running.log.splitlines() if "bug in watt" in line]


def _fine(answer: Answer) -> bool:
    """Say whether an answer is a success, or a refusal in a sentence that a person can read."""
    if answer.status == 200:
        return True
    said = answer.body.get("error") if isinstance(answer.body, dict) else None
    return 400 <= answer.status < 500 and isinstance(said, str) and 0 < len(said) < 1000


def hostile(number: str) -> tuple[str, str, Any]:
    """Give one hostile call as method, address and body."""
    chance = random.Random(number)
    node = quote(str(chance.choice(("n2",) * 9 + ("n1", "x" * 300, "\x1b[31m"))), safe="")
    if chance.random() < 0.03:
        word = quote(str(chance.choice(EXTREMES))[:200], safe="", errors="replace")
        return "GET", f"/v1/agents/{node}/desired?wait={word}&serial={word}", None
    now = datetime.now(UTC)
    body = _report("n2", chance.randrange(1 << 40), now, ("GPU-c",))
    if chance.random() < 0.01:
        body["batch"]["rows"] *= MOST_ROWS // len(body["batch"]["rows"])
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        places = list(_places(body))
        holder, key = chance.choice(places)
        value = copy.deepcopy(chance.choice(EXTREMES))
        if isinstance(holder, dict) and chance.random() < 0.1:
            holder[str(value)[:80]] = holder[key]
        elif chance.random() < 0.1:
            del holder[key]
        else:
            holder[key] = value
    return "POST", f"/v1/agents/{node}/readings", body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give every place in a body where something can be put."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def _report(node: str, seq: int, now: datetime, gpus: tuple[str, ...]) -> dict[str, Any]:
    """Give an honest delivery."""
    start = now.replace(minute=0, second=0, microsecond=0)
    rows = tuple(
        EnergyRow(
            gpu_uuid=gpu,
            run="",
            incarnation="",
            slot_start=start,
            slot_end=start + timedelta(minutes=30),
            energy_mj=1000,
            unobserved_ms=0,
            upper_mj=0,
            source="nvml",
            quality="measured",
            line="idle",
        )
        for gpu in gpus
    )
    baselines = tuple(
        CounterBaseline(gpu_uuid=gpu, energy_mj=seq, at=now, monotonic_s=1.0, boot_id="b")
        for gpu in gpus
    )
    batch = EnergyBatch(node=node, boot_id="b", seq=seq, at=now, rows=rows, baselines=baselines)
    device = {"at": now.isoformat(), "power_w": HONEST_W, "quality": "measured", "clock_mhz": 1980}
    controls = tuple(GpuControl(gpu_uuid=gpu, limit_w=700.0) for gpu in gpus)
    facts: Mapping[str, Any] = {
        "version": "0.1.0",
        "boot_id": "b",
        "deliver_s": 300.0,
        "applied": Applied(mode="enforce", epoch=1, gpus=controls).to_json(),
        "refused": {"rows": 0, "energy_j": 0.0, "why": ""},
        "troubles": ["one"],
    }
    devices = {gpu: dict(device) for gpu in gpus}
    told: dict[str, Any] = Report(batch=batch, devices=devices, facts=facts).to_json()
    return json.loads(json.dumps(told))  # type: ignore[no-any-return]
