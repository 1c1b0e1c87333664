"""Carry arms out in pieces: launch, wait, launch again; what was done stays done.

Invariant: an arm that is `done` is not launched again; one that is not goes on from its newest
checkpoint. A launch that fails is an error, never tried again: this benchmark looks for failures.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.equivalence.job import Arm
from tests.hook.harness import Zygote
from wattmesh.reconfig.launch.folder import OUTCOME_VARIABLE

POLL_S = 0.2
TELL_EVERY_S = 20.0


class OutOfTime(Exception):
    """The minutes given are over; the state is kept."""


class Runner:
    """Launches arms while there is time."""

    def __init__(self, zygote: Zygote, minutes: float) -> None:
        """Stop launching, and pause what runs, after `minutes`; 0 is for ever."""
        self._zygote = zygote
        self._until = time.monotonic() + 60 * minutes if minutes else float("inf")

    def carry_out(self, name: str, arm: Arm) -> None:
        """Train an arm to its end.

        Raises:
            OutOfTime: it was paused, or never begun.
            RuntimeError: a launch failed; the ranks' last words are in the message.
        """
        arm.path.mkdir(parents=True, exist_ok=True)
        if arm.states:
            Path(arm.states).mkdir(parents=True, exist_ok=True)
        arm.pause.unlink(missing_ok=True)
        while not done(arm):
            if time.monotonic() > self._until:
                raise OutOfTime
            outcome = self._launch(name, arm)
            if outcome == "done":
                (arm.path / "done").touch()
            elif outcome != "restart":
                raise RuntimeError(f"{name}: a launch ended as {outcome!r}.\n{_last_words(arm)}")

    def _launch(self, name: str, arm: Arm) -> str:
        """Launch once and wait; gives how it ended."""
        note = arm.path / "outcome.json"
        note.unlink(missing_ok=True)
        environment = {"ARM": json.dumps(asdict(arm)), OUTCOME_VARIABLE: str(note)}
        job = "benchmarks.equivalence.job:main"
        began = time.monotonic()
        number = self._zygote.start(arm.world_size, environment, arm.path, job)
        told = began
        while self._zygote.status(number) is None:
            time.sleep(POLL_S)
            now = time.monotonic()
            if now > self._until:
                arm.pause.touch()
            if now - told > TELL_EVERY_S:
                told = now
                say(f"{name}: step {newest(arm)} of {arm.steps}")
        with (arm.path / "seconds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"seconds": time.monotonic() - began}) + "\n")
        status = self._zygote.wait(number)
        outcome = json.loads(note.read_text())["outcome"] if note.exists() else "no outcome"
        say(f"{name}: step {newest(arm)} of {arm.steps}, {outcome}")
        return str(outcome) if status == 0 else f"{outcome}, status {status}"


def done(arm: Arm) -> bool:
    """Whether an arm was trained to its end."""
    return (arm.path / "done").exists()


def lines(arm: Arm, name: str) -> list[dict[str, Any]]:
    """What an arm noted; the last line of a step counts."""
    path = arm.path / f"{name}.jsonl"
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if any("step" not in line for line in found):
        return found
    return sorted({line["step"]: line for line in found}.values(), key=lambda each: each["step"])


def losses(arm: Arm) -> dict[int, float]:
    """Loss by step."""
    return {line["step"]: line["loss"] for line in lines(arm, "losses")}


def samples(arm: Arm) -> dict[int, Mapping[int, int]]:
    """How often each sample was consumed, by step."""
    return {
        line["step"]: {int(sample): count for sample, count in line["counts"].items()}
        for line in lines(arm, "samples")
    }


def seconds(arm: Arm) -> float:
    """Wall time of all its launches."""
    return float(sum(line["seconds"] for line in lines(arm, "seconds")))


def newest(arm: Arm) -> int:
    """The last step that was noted."""
    return max(losses(arm), default=0)


def say(sentence: str) -> None:
    """Tell a person how far it is."""
    print(f"equivalence: {sentence}", file=sys.stderr, flush=True)


def _last_words(arm: Arm) -> str:
    tails = []
    for path in sorted(arm.path.glob("rank-*.log")):
        tails += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-12:]]
    return "\n".join(tails)
