"""The door of the actuator: what is said on its socket by whoever may connect.

The real actuator over a fake NVML library. A member of its group, who may look and nothing else,
and the agent's own user send wishes with strange and with extreme values, changed and half lines,
lines up to the limit and beyond it, epochs, other journals and obligations; another member holds
all the connections that he can get. In between the agent, as it should be, wishes a clock for a GPU
of its run, and root looks; now and then the actuator is killed and comes back.

Invariant: a crash is a line without an answer, an answer that is neither what was asked for nor a
refusal with a sentence, a bug that is told or logged, anything that the member is obeyed in, a GPU
that is lowered for a run without a process there, an actuator that ended, or one that has forgotten
over a restart whom it obeys. Whatever the well-behaved agent wishes and does not get is counted as
a call of another that was refused.
"""

import json
import random
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.hostile.strange import replaced, written
from benchmarks.hostile.tried import Cost, Tried, used
from benchmarks.safety.node import RUN, Node, kill
from tests.api.stranger import GROUP, connecting
from wattmesh.errors import WattmeshError
from wattmesh.telemetry.actuator.rules.fence import MOST_RISE
from wattmesh.telemetry.actuator.wire import LONGEST_LINE
from wattmesh.telemetry.desired import MOST_WISHES, Applied

VICTIM, OTHER, MEMBER, HOARDER, AGENT = 54_001, 54_002, 54_100, 54_101, 54_200
LOCK_MHZ, LOWEST_W, USUAL_W = 1200, 350.0, 700.0
"""What the well-behaved agent wishes; the floor of the settings, and what was found."""

HOARDED = 40
"""More connections than an actuator serves."""

PATIENCE_S = 20.0
EVERY = 20
"""Inputs between two wishes of the well-behaved agent."""

LIVES = 3
STRANGE_JOURNAL = "9d1c7c9e-41f5-4a0e-9d1c-0a7f2f4a5b02"

Connect = Callable[[], socket.socket]
Wish = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One input. `answers`: how many lines must come back. `looks`: nothing else is asked for."""

    content: bytes
    answers: int = 0
    looks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a sound wish names: the GPUs, the journal and its epoch, a process of the run."""

    gpus: tuple[str, ...]
    journal: str
    epoch: int
    pid: int


def measure(seed: int, count: int) -> Tried:
    """Send `count` inputs; the same seed sends the same, but for the times and pids in it."""
    with ExitStack() as stack:
        node = stack.enter_context(Node())
        text = node.config.read_text()
        node.config.write_text(text.replace('group = ""', f'group = "{GROUP}"\nagent = "{AGENT}"'))
        node.folder.chmod(0o755)
        for index, uid in enumerate((VICTIM, OTHER)):
            node.job(gpus=[index], uid=uid)
        node.start()
        path = node.folder / "actuator.sock"
        member, hoarder, agent = (
            stack.enter_context(connecting(path, uid)) for uid in (MEMBER, HOARDER, AGENT)
        )
        door = _Door(node, member, hoarder, agent)
        stack.callback(door.let_go)
        for number in range(count):
            if number % (count // LIVES + 1) == 0:
                door.begin_life()
            door.knock(f"{seed}:{number}")
            if number % EVERY == EVERY - 1:
                door.behave()
        door.behave()
        log = (node.folder / "actuator.log").read_text()
    bugs = [f"logged {line:.200}" for line in log.splitlines() if "bug in the act" in line]
    return Tried(
        door="actuator",
        inputs=count,
        crashes=(*door.crashes, *bugs),
        costs=tuple(door.costs),
        others_refused=len(door.refused),
    )


@dataclass(slots=True)
class _Door:
    """One actuator, who comes to it, and what came of that."""

    node: Node
    member: Connect
    hoarder: Connect
    agent: Connect
    epoch: int = 1
    hoarded: list[socket.socket] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def begin_life(self) -> None:
        """Kill the actuator, once it has lived, with as much to remember as it may be told."""
        self.let_go()
        if self.node.client.state().journal:
            for name in ("x", "\u00e9"):
                with self.agent() as client:
                    sent = Sent(content=_line(_fullest(self._scene(), name)), answers=1)
                    self._read(f"the fullest wish, of {name}", client, sent, looks=False)
            before = self.node.client.state()
            kill(self.node.actuator)
            self.node.start()
            after = self.node.client.state()
            if _remembered(after) != _remembered(before):
                self.crashes.append(f"{before!r:.300} was forgotten over a restart: {after!r:.300}")
        for _ in range(HOARDED):
            client = self.hoarder()
            self.hoarded.append(client)
            with suppress(OSError):
                client.sendall(b'{"v":1,')
        self.behave()

    def let_go(self) -> None:
        """Close what is hoarded."""
        while self.hoarded:
            self.hoarded.pop().close()

    def behave(self) -> None:
        """Look as root, wish as the agent should; note where either is not served or obeyed."""
        try:
            self.epoch = self.node.client.state().epoch
            wish = _apply(self._scene(), [_economy(self.node.uuid(0), clock_mhz=LOCK_MHZ)])
            with self.agent() as client:
                client.settimeout(PATIENCE_S)
                client.sendall(_line(wish))
                with client.makefile("rb") as lines:
                    answer = json.loads(lines.readline())
            if answer["ok"] is not True:
                raise ValueError(answer)
            self.node.until(lambda: self.node.truths()[0].lock_mhz == LOCK_MHZ, PATIENCE_S)
        except (WattmeshError, OSError, ValueError) as error:
            self.refused.append(f"{type(error).__name__}: {error}")

    def knock(self, number: str) -> None:
        """Send one input, as a member or as the agent's user."""
        rng = random.Random(number)
        looks = rng.random() < 1 / 3
        kind = rng.choice(KINDS)
        sent = kind(rng, self._scene())
        words = f"actuator {number} {kind.__name__.strip('_')}{' as a member' if looks else ''}"
        assert self.node.actuator is not None
        pid = self.node.actuator.pid
        before = used(pid)
        for each in self.hoarded:
            with suppress(OSError):
                each.send(b" ", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        with (self.member if looks else self.agent)() as client:
            client.settimeout(PATIENCE_S)
            self._read(f"{words}: {sent.content[:200]!r}", client, sent, looks=looks)
        for wrong in self._lowered():
            self.crashes.append(f"{words}: {sent.content[:500]!r}: {wrong}")
        cpu_s, mib = (max(0.0, one - was) for one, was in zip(used(pid), before, strict=True))
        self.costs.append(Cost(words, len(sent.content), cpu_s, mib))

    def _read(self, words: str, client: socket.socket, sent: Sent, *, looks: bool) -> None:
        """Send, and read every answer there is."""
        found = 0
        try:
            with suppress(OSError):
                client.sendall(sent.content)
                client.shutdown(socket.SHUT_WR)
            with client.makefile("rb") as lines:
                for line in lines:
                    found += 1
                    wrong = _wrong(json.loads(line), refused=looks and not sent.looks)
                    if wrong:
                        self.crashes.append(f"{words}: {line[:300]!r}: {wrong}")
        except (OSError, ValueError) as error:
            words = f"{words}: {type(error).__name__} {error}"
        if found < sent.answers:
            self.crashes.append(f"{words}: {found} answers of {sent.answers}")

    def _lowered(self) -> list[str]:
        """Say what is lowered further than anybody may."""
        ours, other = self.node.truths()
        found = []
        if other.lock_mhz is not None or other.requested_limit_w != USUAL_W:
            found.append(f"another user's GPU was set: {other}")
        if not LOWEST_W <= ours.requested_limit_w <= USUAL_W:
            found.append(f"a limit beyond what is allowed: {ours}")
        return found

    def _scene(self) -> Scene:
        """Give what a sound wish names now."""
        return Scene(
            gpus=tuple(each.uuid for each in self.node.fake.gpus),
            journal=self.node.journal,
            epoch=self.epoch,
            pid=self.node.started[0].pid,
        )


def _remembered(applied: Applied) -> tuple[str, int, set[str]]:
    """Give what an actuator must know after a restart: whom it obeys, and what it is to hold."""
    return applied.journal, applied.epoch, {each.gpu_uuid for each in applied.gpus}


def _wrong(answer: Any, *, refused: bool) -> str:
    """Say what is wrong with an answer; "" where nothing is."""
    if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
        return "no answer as agreed"
    if answer["ok"]:
        return "a member was obeyed" if refused else ""
    if answer.get("error") not in ("fenced", "refused", "invalid", "retry"):
        return "no refusal"
    said = answer.get("sentence")
    return "" if isinstance(said, str) and 0 < len(said) < 1000 else "no sentence"


def _line(document: Any) -> bytes:
    text = written(document).replace("\\u00e9", "\u00e9")  # else it would be three times as long
    return text.encode(errors="surrogatepass") + b"\n"


def _economy(gpu_uuid: str, **changes: Any) -> Wish:
    usual = {"gpu_uuid": gpu_uuid, "kind": "economy", "holder": RUN, "lease_s": 60.0}
    return {**usual, "clock_mhz": 1300, **changes}


def _duty(gpu_uuid: str, seconds: float = 600.0, **changes: Any) -> Wish:
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    usual = {"gpu_uuid": gpu_uuid, "kind": "obligation", "holder": "power-cap", "until": until}
    return {**usual, "cap_w": 450.0, **changes}


def _apply(scene: Scene, wishes: list[Wish], **changes: Any) -> dict[str, Any]:
    """Give a request; `changes`: of what is said beside the wishes."""
    desired = {"node": "n1", "serial": "s", "epoch": scene.epoch, "journal": scene.journal}
    claims = changes.pop("claims", {RUN: {"uids": [VICTIM], "pids": [scene.pid]}})
    return {
        **{"v": 1, "op": "apply", "claims": claims},
        "desired": {**desired, "wishes": wishes, **changes},
    }


def _sound(scene: Scene) -> dict[str, Any]:
    return _apply(scene, [_economy(scene.gpus[0], cap_w=500.0), _duty(scene.gpus[0])])


def _fullest(scene: Scene, letter: str) -> dict[str, Any]:
    """As many obligations as there may be, with the longest names that fit a line."""
    name = 190 * letter
    gpus = [f"{number:04d}{name}" for number in range(MOST_WISHES)]
    return _apply(scene, [_duty(gpu, holder=name) for gpu in gpus])


def _replaced(rng: random.Random, scene: Scene) -> Sent:
    """A sound wish with one or two parts replaced."""
    document: Any = _sound(scene)
    for _ in range(rng.randint(1, 2)):
        document = replaced(rng, document)
    return Sent(content=_line(document), answers=1)


def _extreme(rng: random.Random, scene: Scene) -> Sent:
    """Wishes of the right types, with values far out."""
    gpu = rng.choice((scene.gpus[0], "GPU-none", "x" * 200, "\u00e9" * 200, "GPU-\n\x1b[31m"))
    lever = {
        "clock_mhz": rng.choice((None, 1, 209, 210, 100_000, 100_001, 2**63)),
        "cap_w": rng.choice(
            (None, 1e-300, 0.001, 199.9, 350, 1e5, 1e300, "a number of 400 digits")
        ),
        "holder": rng.choice((RUN, "power-cap", "x" * 200, "\U0001f525" * 200, "a\nERROR b")),
    }
    wishes = [
        _economy(gpu, **lever, lease_s=rng.choice((1e-9, 0.01, 86_400, 86_401, 10**30))),
        _duty(gpu, rng.choice((-1e9, 0.01, 1.0, 31 * 86_400.0, 32 * 86_400.0)), **lever),
    ]
    return Sent(content=_line(_apply(scene, rng.sample(wishes, rng.randint(0, 2)))), answers=1)


def _fences(rng: random.Random, scene: Scene) -> Sent:
    """Other journals, and epochs that rise, fall and leap."""
    epoch = scene.epoch + rng.choice((-1, 0, 1, MOST_RISE, MOST_RISE + 1, 2**31, 2**62, 0.5))
    journal = rng.choice((scene.journal, scene.journal, STRANGE_JOURNAL, "", "x" * 36, None))
    wish = _apply(scene, [_economy(scene.gpus[0])], epoch=epoch, journal=journal)
    return Sent(content=_line(wish), answers=1)


def _lies(rng: random.Random, scene: Scene) -> Sent:
    """A wish for a GPU where another user computes, with claims of every kind."""
    claims = rng.choice(
        (
            {},
            {RUN: {"uids": [VICTIM]}},
            {RUN: {"uids": [VICTIM, 0], "pids": [scene.pid, 1]}},
            {RUN: {"uids": [-1]}},
            {RUN: {"uids": list(range(4097))}},
            {str(each): {"uids": [OTHER]} for each in range(3000)},
        )
    )
    wishes = [_economy(each, cap_w=400.0) for each in scene.gpus]
    return Sent(content=_line(_apply(scene, wishes, claims=claims)), answers=1)


def _acts(rng: random.Random, scene: Scene) -> Sent:
    """What only root may ask for."""
    asked: dict[str, Any] = rng.choice(ACTS)
    return Sent(content=_line({"v": 1, **asked}), answers=1)


def _bytes(rng: random.Random, scene: Scene) -> Sent:
    """A sound line with changed bytes, whole or not."""
    content = bytearray(_line(_sound(scene)))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(content))
        content[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 3))
    end = rng.choice([len(content), rng.randrange(1, len(content))])
    return Sent(content=bytes(content[:end]), answers=1)


def _long(rng: random.Random, scene: Scene) -> Sent:
    """A line as long as one may be, or longer."""
    if rng.random() < 1 / 2:
        document = _fullest(scene, rng.choice("x\u00e9\U0001f525"))
        content = json.dumps(document, ensure_ascii=False).encode()
        return Sent(content=content[: LONGEST_LINE - 1] + b"\n", answers=1)
    nbytes = LONGEST_LINE + rng.choice((-1, 0, 10))
    unit = rng.choice((b"[", b"9", b" ", b'{"a":', b"\xff", b'"\\ud800",'))
    return Sent(content=(unit * (nbytes // len(unit) + 1))[:nbytes] + b"\n", answers=1)


def _many(rng: random.Random, scene: Scene) -> Sent:
    """Many lines at once, to be answered in turn."""
    number = rng.randint(2, 40)
    return Sent(content=b'{"v":1,"op":"state"}\n' * number, answers=number, looks=True)


ACTS: tuple[dict[str, Any], ...] = (
    *({"op": "restore"}, {"op": "restore", "obligations": True}, {"op": "resume"}),
    *({"op": "obey", "journal": each, "epoch": 0} for each in (STRANGE_JOURNAL, "", None)),
    *({"op": "obey"}, {"op": "become-root"}, {"op": None}, {"op": []}, {"op": "state "}),
)
KINDS: tuple[Callable[[random.Random, Scene], Sent], ...] = (
    *(_replaced, _replaced, _extreme, _extreme, _extreme, _fences),
    *(_lies, _acts, _bytes, _bytes, _long, _many),
)
