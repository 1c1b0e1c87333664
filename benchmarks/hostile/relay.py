"""The door of a node's relay: what jobs send to a real agent, which passes it on to a real daemon.

A user (connections of another uid) sends calls with strange fields, requests with changed bytes,
headers and addresses that lie, many requests at once, halves, bodies up to the limit and beyond it,
and leaves waiting calls unread. A second one holds more connections and calls than he may.
Meanwhile the owner of a run, whose uid is beyond 2^31, reports, beats and asks for orders at the
same relay.

Invariant: a crash is a whole request without an answer, an answer that is neither a success nor a
refusal with a sentence, a fault of the server's (5xx, but for a quota of the caller's own), a call
about the owner's run that is obeyed, or an agent or daemon that ended or logged a bug.
"""

import json
import random
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from io import BufferedReader
from pathlib import Path
from typing import Any

from benchmarks.hostile.others import asking, training
from benchmarks.hostile.strange import replaced, written
from benchmarks.hostile.tried import Cost, Tried, used
from tests.agent.nodes import AGENTS, Node, node
from tests.api.stranger import GROUP, connecting
from tests.builders import messages
from tests.daemon.process import DaemonProcess, daemon
from wattmesh.controller.agent.relay import BODY_LIMIT_BYTES, HEAD_LIMIT_BYTES
from wattmesh.reconfig.switch import SwitchState

OWNER, STRANGER, GREEDY = 4_000_000_001, 12_345, 12_346
OWNED = "6d1c9d0e-0000-4000-8000-00000000beef"
"""The stranger's own run: what is sent of it goes deeper than a refusal."""

HOARDED = "6d1c9d0e-0000-4000-8000-00000000cafe"
"""The greedy user's own run."""

CROWD = 300
"""More connections than one user may hold, and more calls."""

HELD = 40
PATIENCE_S = 60.0
EACH_LAUNCH = 20
"""Inputs after which the stranger's run is launched anew, for what was sent may have ended it."""

OWN_QUOTA = (b"too many calls", b"waits_per_user")

Connect = Callable[[], socket.socket]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One input.

    Attributes:
        answers: how many must come. `held`: the connection stays, and nothing is read of it.
        refused: it is about somebody else's run, so nothing of it may be obeyed.
    """

    content: bytes
    answers: int = 0
    held: bool = False
    refused: bool = False


def measure(seed: int, count: int) -> Tried:
    """Send `count` inputs; the same seed sends the same."""
    with ExitStack() as stack:
        # Others may enter it, which pytest's own folders do not allow.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wattmesh-")))
        folder.chmod(0o755)
        running = stack.enter_context(daemon(folder, AGENTS))
        beside = stack.enter_context(node(folder, "n1", f"unix://{running.socket}", gpus=1))
        settings = beside.folder / "wattmesh.toml"
        settings.write_text(settings.read_text().replace("[api]\n", f'[api]\ngroup = "{GROUP}"\n'))
        beside.start()
        owner, stranger, greedy = (
            stack.enter_context(connecting(beside.relay, uid)) for uid in (OWNER, STRANGER, GREEDY)
        )
        door = _Door(beside, stranger, stack)
        with training(asking(owner), f"/v1/runs/{messages.RUN}/order") as refused:
            stack.enter_context(_crowd(greedy))
            for number in range(count):
                door.knock(f"{seed}:{number}", launch=number % EACH_LAUNCH == 0)
        crashes = [*door.crashes, *_ended(beside, running)]
    return Tried(
        door="relay",
        inputs=count,
        crashes=tuple(crashes),
        costs=tuple(door.costs),
        others_refused=len(refused),
    )


@contextmanager
def _crowd(connect: Connect) -> Iterator[None]:
    """Hold connections until the block ends, on each a call that waits; none is read."""
    body = messages.register(run=HOARDED, name="hoarded", incarnation="hoarded-1")
    answer = asking(connect)("POST", f"/v1/runs/{HOARDED}/register", body)
    assert answer.status == 200, answer.body
    with ExitStack() as stack:
        for _ in range(CROWD):
            client = stack.enter_context(connect())
            with suppress(OSError):
                client.sendall(_request(f"{HOARDED}/order?wait=60"))
        yield


def _ended(beside: Node, running: DaemonProcess) -> Iterator[str]:
    """See that both processes live and say of no bug."""
    for name, process, log in (
        ("agent", beside.running, beside.log),
        ("daemon", running.process, running.log),
    ):
        if process.poll() is not None:
            yield f"the {name} ended with {process.returncode}: {log[-300:]}"
        for line in log.splitlines():
            if any(each in line for each in ("Traceback", "this is a bug", "never retrieved")):
                yield f"the {name} logged {line:.200}"


@dataclass(slots=True)
class _Door:
    """One relay, and what the stranger holds of it until `stack` ends."""

    beside: Node
    connect: Connect
    stack: ExitStack
    attempt: int = 0
    held: list[socket.socket] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def knock(self, number: str, *, launch: bool) -> None:
        """Send one input."""
        rng = random.Random(number)
        if launch:
            self.attempt += 1
            body = messages.register(name="own", **_own(self.attempt))
            self._send("launch", Sent(content=_request(f"{OWNED}/register", body), answers=1))
        kind = rng.choice(KINDS)
        self._send(f"{number} {kind.__name__.strip('_')}", kind(rng, self.attempt))

    def _send(self, words: str, sent: Sent) -> None:
        """Send something, read what must come, and see what it cost the agent."""
        pid = self.beside.running.pid
        before = used(pid)
        client = self.stack.enter_context(self.connect())
        client.settimeout(PATIENCE_S)
        with suppress(OSError):
            client.sendall(sent.content)
        if sent.held:
            self.held.append(client)
            if len(self.held) > HELD:
                self.held.pop(0).close()
        else:
            with client:
                self._read(f"{words}: {sent.content[:200]!r}", client, sent)
        cpu_s, mib = (max(0.0, one - was) for one, was in zip(used(pid), before, strict=True))
        self.costs.append(Cost(f"relay {words}", len(sent.content), cpu_s, mib))

    def _read(self, words: str, client: socket.socket, sent: Sent) -> None:
        """Read every answer there is."""
        found, quota = 0, False
        try:
            client.shutdown(socket.SHUT_WR)
            with client.makefile("rb") as stream:
                while (answer := _answer(stream)) is not None:
                    found += 1
                    quota |= any(each in answer[1] for each in OWN_QUOTA)
                    wrong = "" if quota else _wrong(*answer, refused=sent.refused)
                    if wrong:
                        self.crashes.append(f"{words}: {answer[0]} {answer[1][:200]!r}: {wrong}")
        except (OSError, ValueError, HTTPException) as error:
            words = f"{words}: {type(error).__name__} {error}"
        if found < sent.answers and not quota:
            self.crashes.append(f"{words}: {found} answers of {sent.answers}")


def _answer(stream: BufferedReader) -> tuple[int, bytes] | None:
    """Read one answer; None at the end."""
    line = stream.readline(65536)
    if not line:
        return None
    length = int(parse_headers(stream)["Content-Length"])
    content = stream.read(length)
    if len(content) != length:
        raise ValueError("an answer that is not whole")
    return int(line.split(b" ", 2)[1]), content


def _wrong(status: int, content: bytes, *, refused: bool) -> str:
    """Say what is wrong with an answer; "" where nothing is."""
    body = json.loads(content)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "a fault of the server's"
    if status == HTTPStatus.OK:
        return "obeyed for somebody else" if refused else ""
    said = body.get("error") if isinstance(body, dict) else None
    return "" if isinstance(said, str) and 0 < len(said) < 1000 else "no sentence"


def _own(attempt: int) -> dict[str, Any]:
    return {"run": OWNED, "incarnation": f"own-{attempt}", "attempt": attempt}


def _request(target: str, body: Any = None, head: str = "", text: bytes | None = None) -> bytes:
    """Write the request of a call about a run; `head`: further fields, `text`: another body."""
    if body is None and text is None:
        return f"GET /v1/runs/{target} HTTP/1.1\r\nhost: w\r\n{head}\r\n".encode("latin-1")
    data = json.dumps(body).encode() if text is None else text
    length = "" if "content-length" in head.lower() else f"content-length: {len(data)}\r\n"
    begin = f"POST /v1/runs/{target} HTTP/1.1\r\nhost: w\r\n{length}{head}\r\n"
    return begin.encode("latin-1") + data


def _calls(rng: random.Random, **who: Any) -> tuple[str, dict[str, Any]]:
    """Give one sound call about a run: its name and its body."""
    seq = rng.randrange(1, 1000)
    return rng.choice(
        (
            ("register", messages.register(name="own", **who)),
            ("progress", messages.progress(seq=seq, step=seq, **who)),
            ("heartbeat", messages.heartbeat(**who)),
            ("transitions", messages.transition("p", 1, SwitchState.ANNOUNCED, **who)),
            ("finish", messages.finish(**who)),
        )
    )


def _nearly(rng: random.Random, attempt: int) -> Sent:
    """A sound call with one or two parts replaced."""
    name, body = _calls(rng, **_own(attempt))
    found: Any = json.loads(json.dumps(body))
    for _ in range(rng.randint(1, 2)):
        found = replaced(rng, found)
    text = written(found).encode(errors="surrogatepass")
    return Sent(content=_request(f"{OWNED}/{name}", text=text), answers=1)


def _bytes(rng: random.Random, attempt: int) -> Sent:
    """A sound request with changed bytes, maybe cut off."""
    name, body = _calls(rng, **_own(attempt))
    content = bytearray(_request(f"{OWNED}/{name}", body))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(content))
        content[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 3))
    return Sent(content=bytes(content[: rng.choice([len(content), rng.randrange(len(content))])]))


def _head(rng: random.Random, attempt: int) -> Sent:
    """A whole head that lies; what follows it is a sound body."""
    body = messages.heartbeat(**_own(attempt))
    return Sent(
        content=_request(f"{OWNED}/heartbeat", body, head=rng.choice(HEADS)),
        answers=1,
    )


def _address(rng: random.Random, attempt: int) -> Sent:
    """An address that is none, or that leads elsewhere."""
    content = _request("RUN/order").replace(b"/v1/runs/RUN/order", rng.choice(ADDRESSES))
    return Sent(content=content, answers=1, refused=True)


def _theirs(rng: random.Random, attempt: int) -> Sent:
    """A sound call about the owner's run, as whose it says it is."""
    name, body = _calls(rng)
    head = f"wattmesh-attested-uid: {OWNER}\r\n"
    return Sent(
        content=_request(f"{messages.RUN}/{name}", body, head=rng.choice(("", head))),
        answers=1,
        refused=True,
    )


def _many(rng: random.Random, attempt: int) -> Sent:
    """Many requests at once."""
    each = _request(f"{OWNED}/heartbeat", messages.heartbeat(**_own(attempt)))
    number = rng.randint(2, 20)
    return Sent(content=each * number, answers=number)


def _long(rng: random.Random, attempt: int) -> Sent:
    """A body as long as one may be, or longer."""
    nbytes = rng.choice((BODY_LIMIT_BYTES, BODY_LIMIT_BYTES + 1))
    unit = rng.choice((b"[", b"9", b" ", b'{"a":', b"\xff", b'"\\ud800",'))
    text = (unit * (nbytes // len(unit) + 1))[:nbytes]
    return Sent(content=_request(f"{OWNED}/progress", text=text), answers=1)


def _half(rng: random.Random, attempt: int) -> Sent:
    """A part of a request, and nothing more."""
    content = _request(f"{OWNED}/progress", messages.progress(seq=1, **_own(attempt)))
    return Sent(content=content[: rng.randrange(len(content))], held=True)


def _waits(rng: random.Random, attempt: int) -> Sent:
    """A call that waits, whose answer nobody reads."""
    return Sent(content=_request(f"{OWNED}/order?wait=60"), held=True)


HEADS: tuple[str, ...] = (
    *(f"content-length: {each}\r\n" for each in ("-1", "", "9" * 30, "0x10", "1e3", "+5", " 7 7")),
    *(f"content-length: {each}\r\ncontent-length: 2\r\n" for each in (1, "nothing")),
    *("transfer-encoding: chunked\r\n", "transfer-encoding: x, chunked\r\n"),
    *(f"wattmesh-attested-uid: {each}\r\n" for each in (0, -1, OWNER, "x", "9" * 300)),
    *("authorization: Bearer x\r\n", "host: other\r\n", "expect: 100-continue\r\n", "\xe9: 1\r\n"),
    *(": \r\n", "no colon\r\n", " folded\r\n", "\0: \0\r\n", "a: b\n\r\n", "upgrade: h2c\r\n"),
    *(f"x: {'y' * HEAD_LIMIT_BYTES}\r\n", "".join(f"x{each}: y\r\n" for each in range(2000))),
)
ADDRESSES: tuple[bytes, ...] = tuple(
    each.encode("latin-1")
    for each in (
        *("/v1/runs/\xe9/order", "/v1/runs/\xa0/order", "/v1/runs/x\ty/order", "/v1/runs/\0/order"),
        *("//[", "http://[::1/v1/runs/x/order", "http://other/v1/runs/x/order", "*", "", "?", "/"),
        *("/v1/runs//order", "/v1/runs/%00/order", "/v1/runs/../order", "/v1/runs/x/../../freeze"),
        *(
            f"/v1/runs/{'x' * 201}/order",
            "/v1/runs/x/order?wait=nan",
            "/v1/runs/x/order?wait=1e999",
        ),
        *("/v1/status", "/v1/freeze", "/v1/agents/n1/desired", f"/v1/runs/{messages.RUN}/order"),
        *(
            f"/v1/runs/{messages.RUN}/order?wait=9&wait=x",
            "/v1/runs/x y/order",
            "/v1/runs/x/order#y",
        ),
    )
)
KINDS: tuple[Callable[[random.Random, int], Sent], ...] = (
    *(_nearly, _nearly, _nearly, _bytes, _bytes, _head, _head, _address),
    *(_theirs, _many, _long, _half, _waits),
)
