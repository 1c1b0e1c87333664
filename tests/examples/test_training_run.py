"""The script itself under a launcher: starts at the line, survives its own end, learns."""

import os
import subprocess
import sys
import time
from pathlib import Path

from wattmesh.reconfig.step_log import StepRow, read
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE, FakeNvml

_PATIENCE_S = 120


def launch(*words: str, ranks: int = 0, **variables: str) -> "subprocess.Popen[bytes]":
    """Start the script: under torchrun with `ranks` processes, or alone."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    inherited = {key: value for key, value in os.environ.items() if key != FOLDER_VARIABLE}
    return subprocess.Popen(
        [sys.executable, *(launcher if ranks else []), "-m", "examples.pretrain", *words],
        env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd(), **variables},
    )


def end_well(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end and require that it is a good one; nothing is left behind."""
    try:
        assert process.wait(_PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def losses(rows: tuple[StepRow, ...]) -> list[float]:
    """Give the losses, and require that no step is missing."""
    assert [row.step for row in rows] == list(range(1, len(rows) + 1))
    return [row.loss for row in rows]


def test_a_run_that_was_launched_twice_trains_as_one_that_never_stopped(tmp_path: Path) -> None:
    """The second launch goes on from the checkpoint: position, optimizer and warm-up included."""
    gpu = FakeNvml.create(tmp_path / "gpus", 2).gpu(1)
    log, start = tmp_path / "steps.jsonl", tmp_path / "start"
    common = ["--preset", "tiny", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    common += ["--layout", "dp_shard=2", "--boundary-every", "2", "--losses", str(log)]
    folder = {FOLDER_VARIABLE: str(tmp_path / "gpus")}
    control = launch(
        *("--preset", "tiny", "--plain", "--steps", "6"),
        *("--losses", str(tmp_path / "control.jsonl")),
    )
    first = launch(*common, "--steps", "3", "--wait-for", str(start), ranks=2, **folder)
    try:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not all((tmp_path / f"start.ready.{rank}").exists() for rank in range(2)):
            assert first.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        assert not log.exists()
        idle_j = gpu.truth().energy_j
        start.touch()
    finally:
        end_well(first)
    end_well(control)
    assert gpu.truth().energy_j > idle_j + 200
    end_well(launch(*common, "--steps", "6", ranks=2, **folder))
    found, expected = losses(read(log)), losses(read(tmp_path / "control.jsonl"))
    worst = max(abs(a - b) / b for a, b in zip(found, expected, strict=True))
    assert worst <= 1e-5, (found, expected)


def test_the_demo_preset_learns(tmp_path: Path) -> None:
    """In 100 steps the loss on real text falls by more than the 30 % that the demo shows."""
    end_well(launch("--plain", "--steps", "100", "--losses", str(tmp_path / "steps.jsonl")))
    found = losses(read(tmp_path / "steps.jsonl"))
    assert sum(found[-5:]) / 5 < 0.7 * found[0]


def test_a_plain_run_wants_as_many_ranks_as_were_launched(tmp_path: Path) -> None:
    """One process cannot train a layout for two: status 1, nothing logged."""
    alone = launch("--plain", "--layout", "tp=2", "--losses", str(tmp_path / "steps.jsonl"))
    assert alone.wait(_PATIENCE_S) == 1
    assert not (tmp_path / "steps.jsonl").exists()
