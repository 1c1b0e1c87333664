"""A rank that trains nothing: each launch does the next line of a plan, as the hook would.

    python paper_rank.py PLAN.json

Rank 0 holds the run folder's lock while it lives, so two launches at once show as a refusal, and
notes what it did in `told.jsonl` beside the plan. The other ranks hang on to it over the network,
and a rank that loses another one fails, as in a collective. No rank imports torch.
"""

import json
import os
import select
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0


class PeerLost(Exception):
    """A connection to another rank broke."""


def main() -> int:
    """Do one line of the plan, the last one again and again."""
    where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if os.environ["RANK"] != "0":
        return _hang_on(where)
    plan, me = Path(sys.argv[1]), f"{socket.gethostname()}/0"
    try:
        with socket.create_server(where) as server:
            server.settimeout(PATIENCE_S)
            peers = [server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
    except OSError:
        return 1
    told = [each.makefile().readline().split() for each in peers]
    try:
        return _lead(plan, peers, {me: os.getpid(), **{name: int(pid) for name, pid in told}})
    except PeerLost:
        return 1


def _hang_on(where: tuple[str, int]) -> int:
    """Be another rank: end as rank 0 says, or fail with it."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(where, 5.0) as lead:
            lead.settimeout(None)
            me = f"{socket.gethostname()}/{os.environ['RANK']}"
            lead.sendall(f"{me} {os.getpid()}\n".encode())
            return 0 if lead.recv(4) == b"over" else 1
        time.sleep(0.05)
    return 1


def _lead(path: Path, peers: list[socket.socket], pids: dict[str, int]) -> int:
    # Imported by rank 0 alone: the others start in no time.
    from wattmesh.errors import Refused  # noqa: PLC0415
    from wattmesh.reconfig.launch import asleep  # noqa: PLC0415
    from wattmesh.reconfig.launch.attempt import AttemptLock  # noqa: PLC0415
    from wattmesh.reconfig.launch.folder import RunFolder  # noqa: PLC0415

    plan: dict[str, Any] = json.loads(path.read_text())
    folder, told = RunFolder(Path(plan["folder"])), path.with_name("told.jsonl")
    before = told.read_text().count('"do"') if told.exists() else 0
    line = plan["lines"][min(before, len(plan["lines"]) - 1)]
    hosts = sorted({each.partition("/")[0] for each in pids})
    note = {"ranks": len(pids), "hosts": hosts, "pids": pids, "job": os.environ.get("JOB", "")}
    try:
        lock = AttemptLock(folder, "paper")
    except Refused as error:
        _tell(told, {**note, "do": "refused", "why": str(error)})
        return 1
    _tell(told, {**line, **note, "attempt": lock.identity.attempt})
    asleep.awake(folder)
    folder.next_file.unlink(missing_ok=True)
    _wait(told, line.get("wait"), peers)
    ends = line["do"]
    if ends in ("suspend", "resize"):
        answer = _hold(folder, line, lock.identity.run, peers)
        _tell(told, {"answer": answer.held_as, "problem": answer.problem})
        _wait(told, line.get("linger"), peers)
        leaves = "suspended" if ends == "suspend" else "restart"
        ends = "done" if answer.problem else line.get("then", leaves)
        if answer.problem:
            asleep.awake(folder)
    for each in peers:
        each.sendall(b"over")
    _end(ends)
    lock.close()
    return 1 if ends == "failed" else 0


def _wait(told: Path, mark: str | None, peers: list[socket.socket]) -> None:
    until = time.monotonic() + PATIENCE_S
    while mark and not (told.parent / mark).exists() and time.monotonic() < until:
        _check(peers, 0.02)


def _check(peers: list[socket.socket], limit_s: float) -> None:
    """Look for a while whether a rank is lost."""
    if select.select(peers, [], [], limit_s)[0]:
        raise PeerLost
    if not peers:
        time.sleep(limit_s)


def _hold(folder: Any, line: dict[str, Any], run: str, peers: list[socket.socket]) -> Any:
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415

    from wattmesh.reconfig.launch import asleep  # noqa: PLC0415
    from wattmesh.reconfig.layout import Layout  # noqa: PLC0415

    launched = int(os.environ["WORLD_SIZE"])
    ranks, wakes_at = line.get("ranks", launched), None
    layout = Layout(dp_shard=ranks)
    if line["do"] == "suspend":
        wakes_at = (datetime.now(UTC) + timedelta(seconds=line["for_s"])).isoformat()
        slept = asleep.AsleepNote(
            key=line["key"],
            run=run,
            attempt=1,
            launched=launched,
            step=10,
            checkpoint="step-00000010",
            layout=layout,
            ranks=tuple(range(ranks)),
            probe=1.0,
        )
        asleep.write(folder.asleep_file, slept)
    else:
        folder.ask_next(
            checkpoint="step-00000010",
            layout=layout,
            ranks=tuple(range(ranks)),
            probe=1.0,
            switch={"plan": line["key"]},
        )
    folder.held_file.unlink(missing_ok=True)
    back: dict[str, Any] = {}
    if "back_s" in line:
        back_at = datetime.now(UTC) + timedelta(seconds=line["back_s"])
        back = {"back_ranks": launched, "back_at": back_at.isoformat()}
    request = asleep.HoldRequest(key=line["key"], run=run, ranks=ranks, wakes_at=wakes_at, **back)
    asleep.write(folder.hold_file, request)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        answer = asleep.read(folder.held_file, asleep.HoldAnswer)
        if answer is not None and answer.key == line["key"]:
            return answer
        _check(peers, 0.02)
    return asleep.HoldAnswer(key=line["key"], problem="no answer")


def _end(outcome: str) -> None:
    if outcome != "failed":
        told = {"outcome": outcome, "sentence": "as planned", "step": 10}
        Path(os.environ["WATTMESH_OUTCOME_FILE"]).write_text(json.dumps(told))


def _tell(path: Path, note: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(note) + "\n")


if __name__ == "__main__":
    sys.exit(main())
