"""A real job, walked through real switches under the launcher, and what the catalogue then says."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from wattmesh.controller.demo.process import DemoFailed
from wattmesh.controller.profile.job import Candidate, ProfileJob, read_job
from wattmesh.controller.profile.profile import profile
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Equivalence, Evidence
from wattmesh.reconfig.layout import Layout
from wattmesh.telemetry.fake_nvml import FakeNvml
from wattmesh.telemetry.nvml_source import NvmlSource

TRAINER = ("-m", "examples.pretrain", "--preset", "tiny", "--steps", "{steps}")


@pytest.fixture
def job() -> ProfileJob:
    """Give a small job: two processes, one switch to a single rank."""
    return replace(
        read_job(Path("examples/pretrain/profile.toml")),
        command=(
            *TRAINER,
            *("--layout", "dp_shard=2", "--boundary-every", "{every}"),
            *("--losses", "{losses}", "--checkpoint-dir", "{checkpoints}"),
        ),
        reference_command=(*TRAINER, "--plain", "--losses", "{losses}"),
        processes=2,
        points=(
            Candidate(id="A", layout=Layout(dp_shard=2)),
            Candidate(id="B", layout=Layout(micro_batch=4)),
        ),
        tokens_per_step=128,
        intervals=2,
    )


def test_a_job_is_profiled_and_its_layouts_are_proven(tmp_path: Path, job: ProfileJob) -> None:
    """One run gives a catalogue whose points are validated, and each number names its source."""
    told: list[str] = []
    found = profile(job, tmp_path / "work", told.append)
    assert found.unproven == {}
    large, small = found.catalogue.points
    assert (large.id, large.equivalence, large.evidence) == (
        "A",
        Equivalence.EXACT,
        Evidence.VALIDATED,
    )
    assert (small.equivalence, small.evidence) == (Equivalence.NUMERICAL, Evidence.VALIDATED)
    assert large.tokens_per_s > small.tokens_per_s
    assert large.power_w > small.power_w > found.catalogue.idle_power_w_per_gpu > 0
    assert large.sources == {
        "tokens_per_s": "simulated",
        "power_w": "simulated",
        "memory_gib": "measured",
    }
    assert large.probe is None
    assert small.probe is not None
    assert small.probe.moved <= small.probe.allowed == pytest.approx(4e-6)
    assert found.catalogue.switch.source == "measured"
    assert found.catalogue.switch.layout_s > 0
    assert any("B (1 rank) trains" in words for words in told)
    path = tmp_path / "catalogue.toml"
    written = catalogue_file.save(found.catalogue, path)
    assert catalogue_file.load(path) == written


def test_a_layout_that_trains_something_else_is_not_proven(tmp_path: Path, job: ProfileJob) -> None:
    """The sabotaged twin: held against a run of another seed, no point may be switched to."""
    other = (*job.reference_command, "--seed", "1")
    found = profile(replace(job, reference_command=other), tmp_path / "work")
    assert set(found.unproven) == {"A", "B"}
    assert "allowed is 1e-05" in found.unproven["B"]
    for point in found.catalogue.points:
        assert (point.equivalence, point.evidence) == (Equivalence.NONE, Evidence.MEASURED)


def test_a_job_that_fails_says_where_its_log_is(tmp_path: Path, job: ProfileJob) -> None:
    """A wrong command ends in one sentence with the log, and leaves no process."""
    broken = replace(job, command=("-m", "examples.no_such_trainer"), reference_command=())
    with pytest.raises(DemoFailed, match=r"job\.log"):
        profile(broken, tmp_path / "work")
    with pytest.raises(InputInvalid, match="is not empty"):
        profile(broken, tmp_path / "work")
    # It let NVML go: this process may read another library now.
    with closing(NvmlSource(FakeNvml.create(tmp_path / "other", 1).library)) as source:
        assert len(source.gpu_uuids()) == 1
