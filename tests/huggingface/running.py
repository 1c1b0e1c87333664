"""Running the job of `job`: launched by the zygote, supervised where it is killed."""

import json
from pathlib import Path
from typing import Any

from tests.hook.harness import Zygote
from tests.hook.job_run import JobRun
from tests.huggingface.job import Has


class MovedRun(JobRun):
    """One run of a transformers model."""

    entry, variable, steps = "tests.huggingface.job:main", "HF_JOB", "steps"

    def __init__(self, zygote: Zygote, folder: Path, nproc: int = 4, **has: Any) -> None:
        """Prepare a run of `nproc` ranks in `folder`."""
        super().__init__(zygote, folder, nproc)
        self.has = Has(folder=str(self.checkpoints), out=str(self.out), **has)

    def average(self) -> float:
        """The number that the average of the parameters came to in the end."""
        return float((self.out / "ema").read_text())

    def switches(self) -> list[list[Any]]:
        """Of every ordered switch of the last launch: its step, how it ended, and why."""
        found: list[list[Any]] = json.loads((self.out / "switches.json").read_text())
        return found
