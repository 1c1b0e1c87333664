"""A real job, walked through real switches under the launcher, and what the catalogue then says."""

from contextlib import chdir, closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.examples.launched import start
from tests.hook.harness import Zygote
from wattmesh.controller.process.children import ChildFailed
from wattmesh.controller.profile.job import Candidate, ProfileJob, fill, read_job
from wattmesh.controller.profile.profile import Profile, judge, profile
from wattmesh.controller.profile.walk import ProfileWalk
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file, step_log
from wattmesh.reconfig.catalogue import Equivalence, Evidence
from wattmesh.reconfig.layout import Layout
from wattmesh.telemetry.fake_nvml import FakeNvml
from wattmesh.telemetry.sources.nvml_source import NvmlSource

TRAINER = ("-m", "examples.pretrain", "--preset", "tiny", "--steps", "{steps}")


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def profiled(
    tmp_path_factory: pytest.TempPathFactory, job: ProfileJob
) -> tuple[Profile, list[str]]:
    """The job, profiled once, and what was told meanwhile.

    Where it is asked for stands another `examples`, which is none of the job's.
    """
    told: list[str] = []
    here = tmp_path_factory.mktemp("profiled")
    (here / "examples").mkdir()
    (here / "examples" / "__init__.py").touch()
    with chdir(here):
        return profile(job, here / "work", told.append), told


def test_a_job_is_profiled_and_its_layouts_are_proven(
    profiled: tuple[Profile, list[str]], tmp_path: Path
) -> None:
    """One run gives a catalogue whose points are validated, and each number names its source."""
    found, told = profiled
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


def test_a_layout_that_trains_something_else_is_not_proven(
    profiled: tuple[Profile, list[str]], job: ProfileJob, zygote: Zygote, tmp_path: Path
) -> None:
    """The sabotaged twin: held against a run of another seed, no point may be switched to."""
    log = tmp_path / "reference.jsonl"
    words = fill(job.reference_command[2:], {"steps": str(2 * job.steps), "losses": str(log)})
    assert zygote.wait(start(zygote, tmp_path, *words, "--seed", "1")) == 0
    other = {row.step: row.loss for row in step_log.read(log)}
    watched = profiled[0].watched
    assert other.keys() == watched.reference.keys()
    found = judge(job, ProfileWalk(job.walk, print), replace(watched, reference=other), 0.0)
    assert set(found.unproven) == {"A", "B"}
    assert "allowed is 1e-05" in found.unproven["B"]
    for point in found.catalogue.points:
        assert (point.equivalence, point.evidence) == (Equivalence.NONE, Evidence.MEASURED)


def test_a_job_that_fails_says_where_its_log_is(tmp_path: Path, job: ProfileJob) -> None:
    """A wrong command ends in one sentence with the log, and leaves no process."""
    broken = replace(job, command=("-m", "examples.no_such_trainer"), reference_command=())
    with pytest.raises(ChildFailed, match=r"job\.log"):
        profile(broken, tmp_path / "work")
    with pytest.raises(InputInvalid, match="is not empty"):
        profile(broken, tmp_path / "work")
    # It let NVML go: this process may read another library now.
    with closing(NvmlSource(FakeNvml.create(tmp_path / "other", 1).library)) as source:
        assert len(source.gpu_uuids()) == 1
