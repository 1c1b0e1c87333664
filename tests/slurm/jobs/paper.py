"""A run of paper jobs on the test's Slurm: its folder, its script, what its launches told."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.daemon.waiting import wait_for
from tests.slurm.cluster import ENDED, Cluster
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.launch_book import LaunchBook, Records

REPOSITORY = Path(__file__).parents[3]
JOB = Path(__file__).with_name("paper_job.py")

SCRIPT = """#!/bin/bash
#SBATCH --gpus-per-node=2
#SBATCH --output={out}/job-%j.out
cd {repository}
{python} -m {module} run --checkpoint-dir {folder} --most-per-node 2 {more} -- {job} {plan}
status=$?
[ $status = 137 ] && [ -e {out}/node-dies ] && sleep 300
exit $status
"""


class Paper:
    """One run."""

    def __init__(self, slurm: Cluster, where: Path, *lines: dict[str, Any], **words: str) -> None:
        """Plan what each launch does; `words` change the batch script."""
        where.mkdir(exist_ok=True)
        self.slurm, self.out = slurm, where
        self.folder = RunFolder(where / "run")
        self.plan = where / "plan.json"
        self.plan.write_text(json.dumps({"folder": str(self.folder.path), "lines": lines}))
        self.script = where / "train.sh"
        filled = {
            "module": "wattmesh.integrations.slurm",
            "more": "",
            "python": sys.executable,
            **words,
        }
        self.script.write_text(
            SCRIPT.format(
                out=where,
                repository=REPOSITORY,
                folder=self.folder.path,
                job=JOB,
                plan=self.plan,
                **filled,
            )
        )

    def submit(self, *words: str, nodes: int = 1, per_node: int = 2) -> int:
        """Submit the first job, as a user does."""
        shape = (f"--nodes={nodes}", f"--ntasks-per-node={per_node}")
        return self.slurm.submit(self.script, *shape, *words)

    def told(self) -> list[dict[str, Any]]:
        """What launches wrote, in order."""
        path = self.out / "told.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def launches(self) -> list[dict[str, Any]]:
        """The launches, in order."""
        return [each for each in self.told() if "do" in each]

    def book(self) -> Records:
        """The launch book."""
        return LaunchBook(self.folder).read()

    def jobs(self) -> dict[int, str]:
        """The states of all jobs of this run that are known, by id."""
        names = {int(each.rpartition("/")[2]) for record in self.book() for each in record.jobs}
        names |= {int(each.begun_by.rpartition("/")[2]) for each in self.book() if each.begun_by}
        known = self.slurm.states()
        return {job: known[job] for job in sorted(names & known.keys())}

    def wait_until(self, count: int) -> list[dict[str, Any]]:
        """Wait for a number of launches; gives them."""
        self._wait(lambda: len(self.launches()) >= count, f"launch {count}")
        return self.launches()

    def wait_told(self, count: int) -> None:
        """Wait until launches wrote so many lines."""
        self._wait(lambda: len(self.told()) >= count, f"line {count}")

    def wait_ended(self) -> None:
        """Wait until no job of this run has or waits for nodes."""

        def over() -> bool:
            jobs = self.jobs()
            return bool(jobs) and all(each in ENDED for each in jobs.values())

        self._wait(over, "the end")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_for(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.where()}") from error

    def mark(self, name: str) -> None:
        """Let a launch go on that waits for a mark."""
        (self.out / name).touch()

    def said(self) -> str:
        """What all jobs printed."""
        logs = sorted(self.out.glob("job-*.out"))
        return "\n".join(f"--- {each.name}\n{each.read_text()}" for each in logs)

    def where(self) -> str:
        """What is known, for who reads a failure."""
        log = (self.slurm.folder / "slurmctld.out").read_text()[-3000:]
        return f"{self.told()}\n{self.book()}\n{self.slurm.states()}\n{self.said()}\n{log}"
