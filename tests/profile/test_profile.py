"""Real jobs, walked through real switches under the launcher, and what the catalogue then says."""

from contextlib import chdir, closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.examples.launched import start
from tests.hook.harness import Zygote
from wattmesh.controller.process.children import ChildFailed
from wattmesh.controller.profile.job import (
    Candidate,
    JobPower,
    PowerKind,
    ProfileJob,
    fill,
    read_job,
)
from wattmesh.controller.profile.launch import logged
from wattmesh.controller.profile.profile import Profile, profile
from wattmesh.controller.profile.proof import BY_LOSSES, REFERENCE, compared, prove, steps_of
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
        seq_len=16,  # of the preset
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


@pytest.fixture(scope="module")
def proven(profiled: tuple[Profile, list[str]], job: ProfileJob) -> Profile:
    """The same, held against the training that never switches."""
    return prove(job, profiled[0])


def test_a_job_is_measured_and_nothing_is_proven_by_that(
    profiled: tuple[Profile, list[str]],
) -> None:
    """Each number names its source: a speed that fake GPUs pace is simulated, like their watts."""
    found, told = profiled
    large, small = found.catalogue.points
    assert {each.evidence for each in (large, small)} == {Evidence.MEASURED}
    assert large.tokens_per_s > small.tokens_per_s
    assert large.power_w > small.power_w > found.catalogue.idle_power_w_per_gpu > 0
    assert large.sources == {
        "tokens_per_s": "simulated",
        "power_w": "simulated",
        "memory_gib": "measured",
    }
    assert "tokens_per_s" in found.catalogue.simulated
    assert large.probe is None
    assert small.probe is not None
    for each in (large.fingerprint, small.fingerprint):
        assert each is not None
        assert each.torch == torch.__version__
        assert each.code_digest
        assert each.driver
    assert small.probe.moved <= small.probe.allowed == pytest.approx(4e-6)
    assert found.catalogue.switch.source == "measured"
    assert found.catalogue.switch.layout_s > 0
    assert any("B (1 rank, micro_batch=4) trains" in words for words in told)


def test_layouts_whose_losses_equal_the_reference_are_proven(proven: Profile) -> None:
    """The reference exactly, the other to rounding."""
    assert proven.unproven == {}
    assert [(each.id, each.equivalence) for each in proven.catalogue.points] == [
        ("A", Equivalence.EXACT),
        ("B", Equivalence.NUMERICAL),
    ]
    assert {each.evidence for each in proven.catalogue.points} == {Evidence.VALIDATED}
    assert {each.validated_by for each in proven.catalogue.points} == {BY_LOSSES}


def test_a_layout_that_trains_something_else_is_not_proven(
    proven: Profile, job: ProfileJob, zygote: Zygote, tmp_path: Path
) -> None:
    """The sabotaged twin: held against a run of another seed, no point may be switched to."""
    reference = {row.step: row.loss for row in logged(proven.folder / REFERENCE)}
    log = tmp_path / "other.jsonl"
    words = fill(job.reference_command[2:], {"steps": str(len(reference)), "losses": str(log)})
    assert zygote.wait(start(zygote, tmp_path, *words, "--seed", "1")) == 0
    other = {row.step: row.loss for row in logged(log)}
    assert other.keys() == reference.keys()
    found = compared(job, proven, steps_of(proven.folder), other)
    assert set(found.unproven) == {"A", "B"}
    assert "allowed is 1e-05" in found.unproven["B"]
    for point in found.catalogue.points:
        assert (point.equivalence, point.evidence) == (Equivalence.NONE, Evidence.MEASURED)
        assert point.validated_by == ""


def test_a_plain_fsdp2_script_is_measured_without_any_fake(tmp_path: Path) -> None:
    """It names no place and counts its own steps; its speed is measured, its watts are assumed."""
    job = read_job(Path("examples/fsdp2/profile.toml"))
    power = JobPower(kind=PowerKind.STATIC, watts=300, idle_watts=60)
    quick = replace(job, power=power, precision=0.5, longest_s=5.0, warm_switches=False)
    found = profile(replace(quick, every=5), tmp_path / "work").catalogue
    large, small = found.points
    assert (large.power_w, small.power_w) == (600, 300)
    assert large.sources == {
        "tokens_per_s": "measured",
        "power_w": "assumed",
        "memory_gib": "measured",
    }
    assert small.probe is not None
    assert found.simulated == ()
    assert [(each.origin, each.target) for each in found.switch.pairs] == [("A", "B")]
    assert not list(tmp_path.glob("**/fsdp2-checkpoints"))


def test_a_job_that_fails_says_where_its_log_is(tmp_path: Path, job: ProfileJob) -> None:
    """A wrong command ends in one sentence with the log, and leaves no process."""
    broken = replace(job, command=("-m", "examples.no_such_trainer"), reference_command=())
    with pytest.raises(ChildFailed, match=r"job\.log"):
        profile(broken, tmp_path / "work")
    # It let NVML go: this process may read another library now.
    with closing(NvmlSource(FakeNvml.create(tmp_path / "other", 1).library)) as source:
        assert len(source.gpu_uuids()) == 1
