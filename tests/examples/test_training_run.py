"""The script itself: starts at the line, goes on after its own end, learns."""

from pathlib import Path

from tests.examples.launched import start
from tests.hook.harness import Zygote, until
from wattmesh.reconfig.step_log import StepRow, read
from wattmesh.telemetry.fake_nvml import FakeNvml

_PATIENCE_S = 120


def end_well(zygote: Zygote, launch: int, logs: Path) -> None:
    """Wait for the end and require that it is a good one."""
    status = zygote.wait(launch, _PATIENCE_S)
    assert status == 0, [each.read_text() for each in logs.glob("rank-*.log")]


def losses(rows: tuple[StepRow, ...]) -> list[float]:
    """Give the losses, and require that no step is missing."""
    assert [row.step for row in rows] == list(range(1, len(rows) + 1))
    return [row.loss for row in rows]


def test_a_run_that_was_launched_twice_trains_as_one_that_never_stopped(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The second launch goes on from the checkpoint: position, optimizer and warm-up included."""
    gpus = tmp_path / "gpus"
    gpu = FakeNvml.create(gpus, 2).gpu(1)
    log, line, logs = tmp_path / "steps.jsonl", tmp_path / "start", tmp_path / "logs"
    common = ["--preset", "tiny", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    common += ["--layout", "dp_shard=2", "--boundary-every", "2", "--losses", str(log)]
    control = start(
        *(zygote, tmp_path / "alone", "--preset", "tiny", "--plain", "--steps", "6"),
        *("--losses", str(tmp_path / "control.jsonl")),
    )
    words = [*common, "--steps", "3", "--wait-for", str(line)]
    first = start(zygote, logs, *words, ranks=2, gpus=gpus)
    ready = [tmp_path / f"start.ready.{rank}" for rank in range(2)]
    until(
        lambda: all(each.exists() for each in ready) or zygote.status(first) is not None,
        "both ranks are at the line",
        _PATIENCE_S,
    )
    assert zygote.status(first) is None
    assert not log.exists()
    idle_j = gpu.truth().energy_j
    line.touch()
    end_well(zygote, first, logs)
    end_well(zygote, control, tmp_path / "alone")
    assert gpu.truth().energy_j > idle_j + 200
    end_well(zygote, start(zygote, logs, *common, "--steps", "6", ranks=2, gpus=gpus), logs)
    found, expected = losses(read(log)), losses(read(tmp_path / "control.jsonl"))
    worst = max(abs(a - b) / b for a, b in zip(found, expected, strict=True))
    assert worst <= 1e-5, (found, expected)


def test_the_demo_preset_learns(zygote: Zygote, tmp_path: Path) -> None:
    """In 100 steps the loss on real text falls by more than the 30 % that the demo shows."""
    log = tmp_path / "steps.jsonl"
    words = ["--plain", "--steps", "100", "--losses", str(log)]
    end_well(zygote, start(zygote, tmp_path, *words), tmp_path)
    found = losses(read(log))
    assert sum(found[-5:]) / 5 < 0.7 * found[0]


def test_a_plain_run_wants_as_many_ranks_as_were_launched(zygote: Zygote, tmp_path: Path) -> None:
    """One process cannot train a layout for two: status 1, nothing logged."""
    words = ["--plain", "--layout", "tp=2", "--losses", str(tmp_path / "steps.jsonl")]
    assert zygote.wait(start(zygote, tmp_path, *words)) == 1
    assert "ranks" in (tmp_path / "rank-0.log").read_text()
    assert not (tmp_path / "steps.jsonl").exists()
