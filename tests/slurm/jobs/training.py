"""A training run as Slurm jobs: its script, its ranks from a rank server, its losses."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.daemon.waiting import wait_for
from tests.hook.harness import DP4, PATIENT
from tests.hook.tiny import Options
from tests.slurm.cluster import ENDED, Cluster
from tests.slurm.jobs.paper import REPOSITORY

STEPS = 45
PATIENCE_S = 600.0
TASK = Path(__file__).with_name("task.py")
SCRIPT = """#!/bin/bash
#SBATCH --gpus-per-node=2
#SBATCH --output={out}/job-%j.out
cd {repository}
{python} -m wattmesh.integrations.slurm run --checkpoint-dir {folder} --most-per-node 2 \
    --address 127.0.0.1 {more} -- {task} {socket}
"""


@contextmanager
def rank_server(where: Path, module: str, **environment: str) -> Iterator[Path]:
    """Start what forks ranks after one import of torch; gives its socket, `where`."""
    server = subprocess.Popen(
        [sys.executable, "-m", module, str(where)],
        stdin=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=REPOSITORY,
    )
    try:
        wait_for(where.exists, "the rank server")
        yield where
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


def losses(out: Path) -> dict[int, float]:
    """The loss of each step that was trained."""
    path = out / "losses.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


class Training:
    """One run of the tiny job as Slurm jobs; it waits for the mark `order-N` at step 10 N."""

    def __init__(
        self,
        slurm: Cluster,
        out: Path,
        ranks: Path,
        daemon: Path | None,
        *,
        more: str = "",
        **options: Any,
    ) -> None:
        """Prepare.

        Args:
            slurm: where it runs.
            out: folder of all that it leaves.
            ranks: socket of the rank server.
            daemon: socket of the one that it speaks to; None: it waits for no marks.
            more: words for `run`.
            options: of the job, where others.
        """
        self.slurm, self.out = slurm, out
        out.mkdir(parents=True)
        self.folder = out / "run"
        marks = {str(step): f"order-{n}" for n, step in enumerate((10, 20, 30), 1)}
        facts: dict[str, Any] = {"wait_for": marks if daemon else {}, **options}
        self.options = Options(
            folder=str(self.folder),
            out=str(out),
            steps=STEPS,
            boundary_every=5,
            layout=DP4.to_dict(),
            deadlines=PATIENT,
            **facts,
        )
        self.environment: Mapping[str, str] = {
            "TINY": self.options.to_text(),
            "RANK_LOGS": str(out),
            **({"WATTMESH_URL": f"unix://{daemon}"} if daemon else {}),
        }
        self.script = out / "train.sh"
        self.script.write_text(
            SCRIPT.format(
                out=out,
                repository=REPOSITORY,
                python=sys.executable,
                folder=self.folder,
                task=TASK,
                socket=ranks,
                more=more,
            )
        )

    def submit(self) -> None:
        """Submit the first job: four ranks on two nodes."""
        self.slurm.submit(
            self.script, "--nodes=2", "--ntasks-per-node=2", environment=self.environment
        )

    def mark(self, name: str) -> None:
        """Let the job go on that waits for a mark."""
        (self.out / name).touch()

    def losses(self) -> dict[int, float]:
        """The loss of each step so far."""
        return losses(self.out)

    def where(self) -> str:
        """What is known, for who reads a failure."""
        logs = [*sorted(self.out.glob("*.out")), *sorted(self.out.glob("*.log"))]
        said = "\n".join(f"--- {each.name}\n{each.read_text()[-3000:]}" for each in logs)
        return f"{self.slurm.states()}\n{said}"

    def wait_until(self, step: int = STEPS) -> None:
        """Wait until a step was trained and every job has ended."""

        def over() -> bool:
            states = self.slurm.states().values()
            return step in self.losses() and all(each in ENDED for each in states)

        try:
            wait_for(over, f"step {step}", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.where()}") from error
