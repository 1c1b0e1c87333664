"""A checkpointer as jobs have them: torch's distributed checkpoint, at once or behind."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from wattmesh.reconfig.checkpoint.foreign import Written
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all

PATIENCE_S = 30.0


class Writer:
    """Writes `step-N` folders of its own, all that the job has in them, and more."""

    def __init__(self, folder: Path, how: str, hold_at: int) -> None:
        """Write into `folder`; `how`: "" | sync | async | forgetful.

        `hold_at`: the async save begun at this step does not end before `let_go`.
        """
        self.folder, self.how = folder, how
        self._hold_at = hold_at
        self._let_go = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def let_go(self) -> None:
        """Let a save that is held go on, and wait until it has ended."""
        self._let_go.set()
        self._pool.submit(lambda: None).result(PATIENCE_S)

    def save(self, state: State, step: int) -> Written:
        """Begin to write."""
        folder = self.folder / f"step-{step}"
        everything: dict[str, Any] = dict(name_all(state).tensors)
        everything["train_state"] = {"step": step, "at": time.time()}
        if self.how == "forgetful":
            everything = {key: each for key, each in everything.items() if "average." not in key}
        if self.how != "async":
            dcp_save(everything, checkpoint_id=folder)
            return Written(folder=folder)
        # Staged: training goes on while this copy is written, with a group of its own.
        staged = {
            key: each.detach().clone() if hasattr(each, "detach") else each
            for key, each in everything.items()
        }
        group = dist.new_group(backend="gloo")
        future: Future[Any] = self._pool.submit(self._write, staged, folder, group, step)
        return Written(folder=folder, future=future)

    def _write(self, staged: dict[str, Any], folder: Path, group: Any, step: int) -> None:
        if step == self._hold_at and not self._let_go.wait(PATIENCE_S):
            raise TimeoutError("nobody let the save go")
        dcp_save(staged, checkpoint_id=folder, process_group=group)
