"""Who may do what on the actuator's socket: real users, real processes on the GPUs, real claims."""

import grp
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from benchmarks.safety.node import DEADLINE_S, RUN, Node
from wattmesh.telemetry.actuator.rules.fence import MOST_RISE
from wattmesh.telemetry.desired import Applied

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

VICTIM, OTHER, MEMBER, AGENT = 54_001, 54_002, 54_100, 54_200
GROUP = grp.getgrgid(1).gr_name
"""Stands for the actuator's group; nobody of the users above has it as the first one."""

JOURNAL, STRANGE = "3b0c7c9e-41f5-4a0e-9d1c-0a7f2f4a5b01", "9d1c7c9e-41f5-4a0e-9d1c-0a7f2f4a5b02"

NOBODY = Applied(mode="none", epoch=0)

SPEAK = """\
import json, os, socket, sys
path, uid = sys.argv[1], int(sys.argv[2])
asked = json.load(sys.stdin)
os.setgroups([1]); os.setgid(uid); os.setuid(uid)
for each in asked:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        channel.sendall(json.dumps({"v": 1, **each}).encode() + b"\\n")
        print(channel.makefile().readline(), end="")
"""


@pytest.fixture
def node() -> Iterator[Node]:
    """A node with one GPU at work for each of two users, whose agent is a user of its own."""
    with Node() as made:
        text = made.config.read_text().replace('group = ""', f'group = "{GROUP}"')
        made.config.write_text(text + f'agent = "{AGENT}"\n')
        made.folder.chmod(0o755)
        for index, uid in enumerate((VICTIM, OTHER)):
            made.job(gpus=[index], uid=uid)
        made.start()
        yield made


def say(node: Node, uid: int, *asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Speak to the actuator as another user, a member of its group; give its answers."""
    done = subprocess.run(
        [sys.executable, "-c", SPEAK, str(node.folder / "actuator.sock"), str(uid)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def apply(
    *wishes: dict[str, Any],
    uids: tuple[int, ...] = (),
    pids: tuple[int, ...] = (),
    epoch: int = 1,
    journal: str = JOURNAL,
) -> dict[str, Any]:
    """Wish something for a holder whose processes are these."""
    desired = {"node": "n1", "serial": "s", "epoch": epoch, "journal": journal, "wishes": wishes}
    claims = {RUN: {"uids": uids, "pids": pids}}
    return {"op": "apply", "desired": desired, "claims": claims}


def slow(node: Node, index: int = 0) -> dict[str, Any]:
    """Wish a low clock and limit for one GPU."""
    economy = {"kind": "economy", "holder": RUN, "clock_mhz": 1200, "cap_w": 500.0, "lease_s": 60.0}
    return {"gpu_uuid": node.uuid(index), **economy}


def lock(node: Node, until: str) -> dict[str, Any]:
    """Wish a lock that lasts until then, whoever dies."""
    duty = {"kind": "obligation", "holder": "mine", "clock_mhz": 210, "until": until}
    return {"gpu_uuid": node.uuid(0), **duty}


@needs_root
def test_a_member_of_the_group_may_look_and_nothing_else(node: Node) -> None:
    """Another user's GPU, locks for ever, epochs that shut the agent out: not even read."""
    asked = [
        apply(slow(node), uids=(VICTIM,)),
        apply(lock(node, "9999-12-31T00:00:00+00:00")),
        apply(epoch=2**31 - 1),
        apply(journal=STRANGE),
        {"op": "restore"},
        {"op": "restore", "obligations": True},
        {"op": "resume"},
        {"op": "look"},
        {"op": "obey", "journal": STRANGE, "epoch": 0},
    ]
    for request, answer in zip(asked, say(node, MEMBER, *asked), strict=True):
        assert (answer["ok"], answer.get("error")) == (False, "refused"), request
        assert f"uid {MEMBER} may not" in answer["sentence"]
    (state,) = say(node, MEMBER, {"op": "state"})
    assert state["applied"]["journal"] == ""
    assert state["applied"]["trouble"] == ""
    assert node.free()


@needs_root
def test_a_user_locks_the_clock_of_a_gpu_that_computes_for_that_user_alone(node: Node) -> None:
    """Nobody else's, nothing but a clock, not for long; and it ends when it is not renewed."""
    clock = {"gpu_uuid": node.uuid(0), "kind": "economy", "holder": RUN, "clock_mhz": 1200}
    own = {"op": "lock", "wishes": [{**clock, "lease_s": 60.0}]}
    node.until(lambda: len((node.answers() or NOBODY).gpus) == 2)
    refused = [
        (own, MEMBER, f"is of uid {VICTIM}, not of {MEMBER}"),
        ({"op": "lock", "wishes": [slow(node)]}, VICTIM, "and nothing else"),
        ({"op": "lock", "wishes": [{**clock, "lease_s": 61.0}]}, VICTIM, "renew it"),
        ({"op": "lock", "wishes": [lock(node, "9999-12-31T00:00:00+00:00")]}, VICTIM, "nothing"),
    ]
    for request, uid, words in refused:
        (answer,) = say(node, uid, request)
        assert (answer["ok"], answer.get("error")) == (False, "refused"), request
        assert words in answer["sentence"]
    assert node.free()
    (taken,) = say(node, VICTIM, own)
    assert taken["ok"]
    node.until(lambda: [each.lock_mhz for each in node.truths()] == [1200, None])
    (_,) = say(node, VICTIM, {"op": "lock", "wishes": [{**clock, "lease_s": 1.0}]})
    node.until(node.free)


@needs_root
def test_the_agent_itself_wishes_within_what_the_kernel_says(node: Node) -> None:
    """Whose processes, how long, which epoch: each is checked, and what is right is obeyed."""
    victim, other = (str(each.pid) for each in node.started[:2])
    soon = (datetime.now(UTC) + timedelta(days=40)).isoformat()
    (first,) = say(node, AGENT, apply())
    assert first["applied"]["journal"] == JOURNAL
    lies = (
        apply(slow(node), uids=(OTHER,)),
        # A pid that was the run's once, and is another user's by now.
        apply(slow(node), uids=(OTHER,), pids=(int(victim), int(other))),
        apply(slow(node), pids=(int(victim),)),
        apply(slow(node), slow(node, 1), uids=(VICTIM,)),
    )
    for answer in say(node, AGENT, *lies):
        assert answer["ok"]
        assert "nothing is set" in str(answer) or f"is not of {RUN}" in str(answer)
        assert node.free()
    refused = [
        (apply(lock(node, "9999-12-31T00:00:00+00:00")), "invalid", "actuator.obligation_days"),
        (apply(lock(node, soon)), "invalid", "more than the 31"),
        (apply(lock(node, "9999-12-31T23:59:59-12:00")), "invalid", "must be a time"),
        (apply(lock(node, "0001-01-01T00:00:00+14:00")), "invalid", "must be a time"),
        (apply(epoch=2**62), "invalid", "epoch must be a whole number"),
        (apply(epoch=2**31 - 1), "fenced", f"more than {MOST_RISE} above 1"),
        (apply(epoch=MOST_RISE + 1), None, ""),
        (apply(epoch=MOST_RISE + 2), "fenced", f"more than {MOST_RISE} above 1"),
        (apply(epoch=MOST_RISE), "fenced", "another controller leads"),
        (apply(epoch=MOST_RISE + 1, journal=STRANGE), "fenced", f"--obey {STRANGE}:"),
        (apply(epoch=MOST_RISE + 1, journal=""), "fenced", "too old to name its journal"),
        (apply(journal="x" * 36), "invalid", "must be a UUID"),
        ({"op": "restore"}, "refused", "for root"),
        ({"op": "obey", "journal": STRANGE, "epoch": 0}, "refused", "for root"),
    ]
    for (request, error, words), answer in zip(
        refused, say(node, AGENT, *(each[0] for each in refused)), strict=True
    ):
        assert answer.get("error") == error, (request, answer)
        assert words in answer.get("sentence", ""), answer
        assert node.free()
    (right,) = say(
        node,
        AGENT,
        apply(slow(node), uids=(VICTIM,), pids=(int(victim),), epoch=MOST_RISE + 1),
    )
    assert right["ok"]
    node.until(lambda: [each.lock_mhz for each in node.truths()] == [1200, None])
