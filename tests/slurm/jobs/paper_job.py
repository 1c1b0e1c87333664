"""A job that trains nothing: each launch does the next line of a plan, as the hook would.

    python paper_job.py PLAN.json

Rank 0 holds the run folder's lock while it lives, so two launches at once show as a refusal. It
notes what it did in `told.jsonl` beside the plan. It imports no torch.
"""

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from wattmesh.errors import Refused
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.asleep import AsleepNote, HoldAnswer, HoldRequest
from wattmesh.reconfig.launch.attempt import AttemptLock
from wattmesh.reconfig.launch.folder import (
    HOLDS_VARIABLE,
    OUTCOME_VARIABLE,
    RESIZES_VARIABLE,
    RunFolder,
    write_json,
)
from wattmesh.reconfig.layout import Layout

PATIENCE_S = 60.0


def main() -> int:
    """Do one line of the plan, the last one again and again."""
    if os.environ["RANK"] != "0":
        return 0
    path = Path(sys.argv[1])
    plan: dict[str, Any] = json.loads(path.read_text())
    folder = RunFolder(Path(plan["folder"]))
    told = path.with_name("told.jsonl")
    before = told.read_text().count('"do"') if told.exists() else 0
    line = plan["lines"][min(before, len(plan["lines"]) - 1)]
    note = {
        "job": int(os.environ["SLURM_JOB_ID"]),
        "ranks": int(os.environ["WORLD_SIZE"]),
        "nodes": int(os.environ["SLURM_NNODES"]),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "holds": HOLDS_VARIABLE in os.environ and RESIZES_VARIABLE in os.environ,
        "leaked": sorted(each for each in os.environ if each.startswith("WATTMESH_SLURM")),
        "do": line["do"],
    }
    try:
        lock = AttemptLock(folder, "paper")
    except Refused as error:
        _tell(told, {**note, "do": "refused", "why": str(error)})
        return 1
    _tell(told, {**note, "attempt": lock.identity.attempt})
    asleep.awake(folder)
    _act(folder, line, told, lock.identity.run)
    lock.close()
    return 0


def _act(folder: RunFolder, line: dict[str, Any], told: Path, run: str) -> None:
    _wait(told, line.get("wait"))
    if line["do"] in ("suspend", "resize"):
        answer = _hold(folder, line, run)
        _tell(told, {"answer": answer.held_as, "problem": answer.problem})
        _wait(told, line.get("linger"))
        if answer.problem:
            asleep.awake(folder)
            _end("done", answer.problem)
        else:
            leaves = "suspended" if line["do"] == "suspend" else "restart"
            _end(line.get("then", leaves), "as planned")
        return
    _end(line["do"], "as planned")


def _wait(told: Path, mark: str | None) -> None:
    until = time.monotonic() + PATIENCE_S
    while mark and not told.with_name(mark).exists() and time.monotonic() < until:
        time.sleep(0.02)


def _hold(folder: RunFolder, line: dict[str, Any], run: str) -> HoldAnswer:
    ranks = line.get("ranks", int(os.environ["WORLD_SIZE"]))
    wakes_at = None
    if line["do"] == "suspend":
        wakes_at = (datetime.now(UTC) + timedelta(seconds=line["for_s"])).isoformat()
        note = AsleepNote(
            key=line["key"],
            run=run,
            attempt=1,
            launched=ranks,
            step=10,
            checkpoint="step-00000010",
            layout=Layout(dp_shard=ranks),
            ranks=tuple(range(ranks)),
            probe=1.0,
        )
        asleep.write(folder.asleep_file, note)
    back: dict[str, Any] = {}
    if "back_s" in line:
        back_at = datetime.now(UTC) + timedelta(seconds=line["back_s"])
        back = {"back_ranks": int(os.environ["WORLD_SIZE"]), "back_at": back_at.isoformat()}
    request = HoldRequest(key=line["key"], run=run, ranks=ranks, wakes_at=wakes_at, **back)
    asleep.write(folder.hold_file, request)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        answer = asleep.read(folder.held_file, HoldAnswer)
        if answer is not None and answer.key == line["key"]:
            return answer
        time.sleep(0.02)
    return HoldAnswer(key=line["key"], problem="no answer")


def _end(outcome: str, sentence: str) -> None:
    told = {"outcome": outcome, "sentence": sentence, "step": 10}
    write_json(Path(os.environ[OUTCOME_VARIABLE]), told, sync=False)


def _tell(path: Path, note: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(note) + "\n")


if __name__ == "__main__":
    sys.exit(main())
