"""One real training job of the demo, started with the launcher that users use.

Its processes import torch and then wait for a start file, so that the grid day and the training
begin together. Invariant: what a job did is read from its own step log and from the journal, never
assumed.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.daemon import RunPaths
from examples.demo.plan import DemoPlan
from wattmesh import durable
from wattmesh.controller.process.children import Child, ChildFailed, Children, wait_for
from wattmesh.reconfig import step_log
from wattmesh.reconfig.step_log import StepRow
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds `examples`: the repository, or a folder of the wheel."""

TRAINER = "examples.pretrain"
TRAINER_PROFILE = ROOT / "examples" / "pretrain" / "profile.toml"
IMPORT_LIMIT_S = 120.0
ASK = """
import json, sys, torch
from examples.pretrain.config import preset
from examples.pretrain.model import LanguageModel
config = preset(sys.argv[1], seed=int(sys.argv[2]))
with torch.device("meta"):
    parameters = sum(each.numel() for each in LanguageModel(config).parameters())
print(json.dumps({
    "parameters": parameters, "learning_rate": config.learning_rate, "clip": config.clip_norm,
    "dtype": config.dtype, "optimizer": "AdamW", "global_batch": config.global_batch,
    "seq_len": config.model.seq_len, "tokens_per_step": config.tokens_per_step,
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """A training job that waits for its start file, or runs."""

    child: Child
    plan: DemoPlan
    folder: Path

    @property
    def losses(self) -> Path:
        """Its step log."""
        return self.folder / "steps.jsonl"

    @property
    def start_line(self) -> Path:
        """The file whose appearance lets it begin."""
        return self.folder / "start"

    def wait_until_ready(self) -> None:
        """Wait until every process has imported what it needs.

        Raises:
            ChildFailed: it ended, or took too long.
        """
        marks = [self.folder / f"start.ready.{rank}" for rank in range(self.plan.processes)]
        wait_for(
            lambda: all(mark.exists() for mark in marks),
            limit_s=IMPORT_LIMIT_S,
            what="Importing torch in the training processes",
            needed=(self.child,),
        )

    def release(self, starts_s: float) -> None:
        """Let the job join the run, and begin its first step at `starts_s` (monotonic)."""
        durable.write_text(self.start_line, repr(starts_s))

    def rows(self) -> tuple[StepRow, ...]:
        """Read the steps done so far."""
        return step_log.read(self.losses) if self.losses.exists() else ()


def start(children: Children, plan: DemoPlan, places: RunPaths) -> DemoJob:
    """Start a job in the baseline's layout; it waits for its start file."""
    folder = places.folder / "job"
    folder.mkdir(parents=True)
    job_words = [
        "-m", TRAINER,
        "--name", plan.run_name,
        "--preset", plan.preset,
        "--seed", str(plan.seed),
        "--steps", str(plan.steps),
        "--layout", plan.layout,
        "--boundary-every", str(plan.boundary_every),
        *paced(plan),
        "--checkpoint-dir", str(folder / "checkpoints"),
        "--losses", str(folder / "steps.jsonl"),
        "--wait-for", str(folder / "start"),
    ]  # fmt: skip
    launcher = [
        "-m", "wattmesh.integrations.torchrun",
        "--nproc", str(plan.processes),
        "--checkpoint-dir", str(folder / "checkpoints"),
    ]  # fmt: skip
    child = children.start(
        f"{places.folder.name} training job",
        [sys.executable, *launcher, "--", *job_words],
        log=places.logs / f"{places.folder.name}-job.log",
        environment={
            **child_environment(),
            "WATTMESH_URL": f"unix://{places.socket}",
            FOLDER_VARIABLE: str(places.gpus),
        },
    )
    return DemoJob(child=child, plan=plan, folder=folder)


def paced(plan: DemoPlan) -> list[str]:
    """Return the trainer's arguments for the speed of the simulated devices."""
    return ["--device-tokens-per-s", str(plan.device_tokens_per_s)]


def start_reordered(children: Children, plan: DemoPlan, folder: Path) -> DemoJob:
    """Start the same training in one plain process that sums in another order."""
    folder.mkdir(parents=True)
    words = [
        "-m", TRAINER, "--plain",
        "--preset", plan.preset,
        "--seed", str(plan.seed),
        "--steps", str(plan.steps),
        "--layout", "micro_batch=1",
        "--losses", str(folder / "steps.jsonl"),
    ]  # fmt: skip
    child = children.start(
        "reordered control",
        [sys.executable, *words],
        log=plan.logs / "reordered-job.log",
        environment=child_environment(),
    )
    return DemoJob(child=child, plan=plan, folder=folder)


def child_environment() -> dict[str, str]:
    """Return environment variables that let a child find `examples`, with one thread each.

    It finds none in the folder where the demo was asked for, which may be another's.
    """
    return {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}


def training(plan: DemoPlan) -> dict[str, Any]:
    """Ask the example, in a child process, what it trains, so that torch is not imported here.

    Raises:
        ChildFailed: it did not answer.
    """
    asked = subprocess.run(
        [sys.executable, "-c", ASK, plan.preset, str(plan.seed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=IMPORT_LIMIT_S,
        env={**os.environ, **child_environment()},
    )
    if asked.returncode:
        raise ChildFailed(f"The example does not say what it trains: {asked.stderr.strip()[-200:]}")
    told: dict[str, Any] = json.loads(asked.stdout)
    return {"processes": plan.processes, "backend": "gloo", "steps": plan.steps, **told}
