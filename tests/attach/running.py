"""Running the job of `user`: launched by the zygote, under the real supervisor if it restarts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.attach.jobs.user import Has
from tests.hook.harness import Zygote
from tests.hook.job_run import JobRun


class UserRun(JobRun):
    """One run of the user's job."""

    entry, variable, steps = "tests.attach.jobs.user:main", "USER_JOB", "tracker"

    def __init__(self, zygote: Zygote, folder: Path, nproc: int, **has: Any) -> None:
        """Prepare a run of `nproc` ranks in `folder`."""
        super().__init__(zygote, folder, nproc)
        self.has = Has(folder=str(self.checkpoints), out=str(self.out), **has)

    def change(self, **has: Any) -> None:
        """Change what the next launch has."""
        self.has = replace(self.has, **has)

    def tracked(self) -> list[dict[str, Any]]:
        """What the experiment tracker was given, in order."""
        return self.trained()

    def ends(self) -> list[dict[str, Any]]:
        """What each rank said at its end, by rank."""
        return sorted(self.lines("end"), key=lambda line: int(line["rank"]))
