"""The job of `tiny`, with a failure in a function of ours at each of its boundaries.

The first boundary is listened to. At each one after it, one rank raises as it enters one of the
functions that its first boundary called, until every function has had its turn.
"""

import errno
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from tests.hook.tiny import Options, TinyJob
from wattmesh.reconfig.hook import boundary
from wattmesh.reconfig.hook.boundary import Boundary
from wattmesh.reconfig.launch import group

GUARD = "BREAK_WITHOUT_GUARD"
"""Set in the environment, the job runs without what is tested."""

HANG = "BREAK_BY_HANGING"
"""Set, rank 1 hangs as it writes its part of the first checkpoint, and nothing else fails."""

OURS = f"{os.sep}reconfig{os.sep}"
ENTRY = Boundary._prepare.__code__
LISTEN_AT = 2


def error(number: int) -> Exception:
    """What is raised: a full disk, a forbidden one, no memory, a mistake of ours."""
    return [
        OSError(errno.ENOSPC, "No space left on device"),
        PermissionError(errno.EACCES, "Permission denied"),
        MemoryError("no memory"),
        KeyError("a mistake"),
    ][number % 4]


class BreakingJob(TinyJob):
    """One rank."""

    def __init__(self, options: Options) -> None:
        """Know of no function yet."""
        super().__init__(options)
        self.called: list[str] = []
        self.plan: list[tuple[int, str]] = []
        self.broken = ""

    @contextmanager
    def _small_disk(self, step: int) -> Iterator[None]:
        """Watch or break the boundary of `step`, which is done inside."""
        turn = step - LISTEN_AT - 1
        rank, name_of_turn = self.plan[turn] if 0 <= turn < len(self.plan) else (-1, "")
        mine = rank == self.rank
        self.broken = name_of_turn if mine else ""
        if step == LISTEN_AT or mine:
            inside: list[bool] = []

            def leave(frame: FrameType, event: str, argument: Any) -> None:
                if event == "return":
                    inside.clear()

            def trace(frame: FrameType, event: str, argument: Any) -> Any:
                if frame.f_code is ENTRY:
                    inside.append(True)
                if not inside or OURS not in frame.f_code.co_filename:
                    return None
                name = f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"
                if step == LISTEN_AT and name not in self.called:
                    self.called.append(name)
                elif name == self.broken:
                    inside.clear()
                    if os.environ.get(HANG):
                        threading.Event().wait()
                    raise error(turn)
                return leave if frame.f_code is ENTRY else None

            threading.settrace(trace)
            sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
        self._look(step)

    def _look(self, step: int) -> None:
        """Write down what came of it, and end the run when all is done."""
        session = self.session
        assert session is not None
        if step == LISTEN_AT:
            leader, other = group.gather(self.called)
            # What both call is broken on the one that does not lead.
            only = [name for name in leader if name not in other]
            self.plan = [(1, name) for name in other] + [(0, name) for name in only]
            if os.environ.get(HANG):
                self.plan = [(1, "direct.write"), (1, ""), (1, "")]
        folder = Path(self.options.folder)
        self._write(
            f"boundaries-{self.rank}",
            {
                "step": step,
                "broken": self.broken,
                "published": (folder / f"step-{step:08d}" / "COMMIT").exists(),
                "staged": len(list(folder.glob(".*.staging"))),
                "trouble": session._boundary.saves.trouble,
            },
        )
        if step > LISTEN_AT + len(self.plan) and not session.done:
            session.finish()


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    if os.environ.get(GUARD):
        vars(boundary)["all_or_none"] = lambda act: act()
    return BreakingJob(Options(**json.loads(os.environ["TINY"]))).run()
