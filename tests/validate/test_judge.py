"""A launch is judged beside the reference's; whatever is missing or wrong proves nothing."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.validate.judge import Beside, WatchedLaunch, point_proof, reference_proof
from wattmesh.controller.validate.results import (
    RESULTS,
    PointProof,
    ValidationProgress,
    load,
)
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.equivalence.asked import JobFacts, RoundTripRow, ValidationFiles
from wattmesh.reconfig.equivalence.shelf import read_whole, write_whole
from wattmesh.reconfig.equivalence.whole import WholeState, change_of_step
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.profile_folder import DeviceMemory, ProfileFolder, memory_line
from wattmesh.reconfig.step_log import StepLog, StepRow

STEPS, SWITCHES = range(1, 25), (8, 16)
A, B = Candidate(id="A", layout=Layout(dp_shard=2)), Candidate(id="B", layout=Layout())
JOB = ProfileJob(
    name="j", directory=Path(), command=("x",), processes=2, reference="A", points=(A, B), every=4
)


class JudgedLaunches:
    """Three launches in files: the reference, a control that adds in another order, a point's."""

    def __init__(self, folder: Path) -> None:
        """Write them as an honest bf16 job would."""
        for name, apart in (("reference", 0.0), ("control", 3e-3), ("point", 4e-3)):
            self.write(folder / name, apart, switched=name == "point")
        self.point = WatchedLaunch(folder / "point")
        self.beside = Beside(
            reference=WatchedLaunch(folder / "reference"),
            controls=(WatchedLaunch(folder / "control"),),
        )

    def write(self, place: Path, apart: float, *, switched: bool) -> None:
        """Write one launch whose figures are apart from the reference's by a share."""
        place.mkdir()
        files = ValidationFiles(place)
        log = StepLog(ProfileFolder(place).steps)
        for step in STEPS:
            loss = 2.0 * 0.99**step * (1 + (apart if step > SWITCHES[0] else 0.0))
            log.append(
                StepRow(
                    step=step,
                    tokens=step,
                    loss=loss,
                    layout="x",
                    gpus=1,
                    monotonic_s=step,
                    elapsed_s=1.0,
                )
            )
        log.close()
        for step in (9, 17):
            self.gradient(files, step, np.arange(1.0, 5.0) * (1 + apart))
            self.stepped(files, step, 1 + apart)
        self.stepped(files, 16, 1 + apart)
        files.facts.write_text(json.dumps(asdict(JobFacts(products="bfloat16"))))
        rows = [("switch", step) for step in SWITCHES] if switched else [("load", 24)]
        self.round_trips(files, [(how, step, 0.0) for how, step in rows])

    @staticmethod
    def gradient(files: ValidationFiles, step: int, values: np.ndarray) -> None:
        """Write one gradient of two experts."""
        write_whole(
            files.gradient(step), WholeState(arrays={"grad.e0": values[:2], "grad.e1": values[2:]})
        )

    @staticmethod
    def stepped(
        files: ValidationFiles,
        step: int,
        moved: float,
        moment: float = 1.0,
        *,
        noise: float = 0.0,
        seed: int = 0,
        decay: float = 0.0,
    ) -> None:
        """Write what one step made of two experts of 1,000 weights each.

        `noise` and `decay`: a random direction, and that of the weights, beside a move of length 1.
        """
        drawn = np.random.default_rng(1).standard_normal((2, 2, 1000)) / 2000**0.5
        apart = np.random.default_rng(seed).standard_normal((2, 1000)) / 2000**0.5
        (weights, move), moments = drawn, {"slot.e0.exp_avg": np.arange(1.0, 3.0)}
        after = weights + move * moved + apart * noise - weights * decay
        names = ("param.e0", "param.e1")
        before = WholeState(arrays=dict(zip(names, weights, strict=True)))
        slots = {name: each * moment for name, each in moments.items()}
        found = WholeState(arrays={**dict(zip(names, after, strict=True)), **slots})
        write_whole(files.stepped(step), change_of_step(before, found))

    @staticmethod
    def round_trips(files: ValidationFiles, rows: list[tuple[str, int, float]]) -> None:
        """Write V1 of some events."""
        told = [
            RoundTripRow(how=how, origin="a", target="b", step=step, measured=wrong, sentence="V1")
            for how, step, wrong in rows
        ]
        files.round_trips.write_text("".join(f"{json.dumps(asdict(each))}\n" for each in told))

    def proof(self) -> PointProof:
        """Judge the point."""
        return point_proof(JOB, B, self.point, self.beside)


@pytest.fixture
def launches(tmp_path: Path) -> JudgedLaunches:
    """Three honest launches."""
    return JudgedLaunches(tmp_path)


def test_an_honest_bf16_job_is_numerical_and_its_reference_exact(launches: JudgedLaunches) -> None:
    """Its figures are far above fp32's limits, and within four times its own noise."""
    found = launches.proof()
    assert (found.equivalence, found.next_step) == ("numerical", "")
    assert [each.check for each in found.checks] == [
        "V1",
        "V1",
        "V7",
        "V12",
        "V7",
        "V12",
        "V12",
        "V2",
    ]
    assert found.tolerance == pytest.approx(1.2e-2)
    assert reference_proof(A, launches.beside).equivalence == "exact"


def _swap_experts(each: JudgedLaunches) -> None:
    found = read_whole(each.point.files.gradient(9)).arrays
    swapped = {"grad.e0": found["grad.e1"], "grad.e1": found["grad.e0"]}
    write_whole(each.point.files.gradient(9), WholeState(arrays=swapped))


def _harm_gradient(share: float) -> Callable[[JudgedLaunches], None]:
    return lambda each: each.gradient(each.point.files, 17, np.arange(1.0, 5.0) * (1 + share))


def _change_state(each: JudgedLaunches) -> None:
    each.round_trips(each.point.files, [("switch", 8, 0.0), ("switch", 16, 3.0)])


def _gather_once(each: JudgedLaunches) -> None:
    each.round_trips(each.point.files, [("switch", 8, 0.0)])


def _lose_gradient(each: JudgedLaunches) -> None:
    each.point.files.gradient(9).unlink()


def _drop_moment(each: JudgedLaunches) -> None:
    each.stepped(each.point.files, 9, moved=1.0, moment=0.1)


def _step_further(each: JudgedLaunches) -> None:
    each.stepped(each.point.files, 9, moved=1.2)


def test_a_step_that_the_reference_left_out_is_told(launches: JudgedLaunches) -> None:
    """A loss scaler skips it in every layout, which says nothing against the point."""
    for each in (launches.point, launches.beside.reference):
        each.files.gradient(9).unlink()
        each.files.stepped(9).unlink()
    found = launches.proof()
    assert not found.proven
    assert "the reference applied no gradient in step 9" in found.because
    assert "another job.every" in found.because


def _lose_step(each: JudgedLaunches) -> None:
    each.point.files.stepped(17).unlink()


def _lose_slot(each: JudgedLaunches) -> None:
    arrays = dict(read_whole(each.point.files.stepped(9)).arrays)
    del arrays["slot.e0.exp_avg"]
    write_whole(each.point.files.stepped(9), WholeState(arrays=arrays))


def _drift(each: JudgedLaunches) -> None:
    log = StepLog(ProfileFolder(each.point.folder).steps)
    log.append(
        StepRow(step=24, tokens=24, loss=2.2, layout="x", gpus=1, monotonic_s=99.0, elapsed_s=1.0)
    )
    log.close()


def _fill_memory(each: JudgedLaunches) -> None:
    row = DeviceMemory(rank=0, step=10, layout=str(B.layout), peak_bytes=98)
    ProfileFolder(each.point.folder).memory(0).write_bytes(memory_line(row))
    facts = replace(each.point.facts, device_bytes=100)
    each.point.files.facts.write_text(json.dumps(asdict(facts)))


@pytest.mark.parametrize(
    ("sabotage", "check"),
    [
        (_swap_experts, "V7"),
        (_harm_gradient(0.5), "V7"),
        (_change_state, "V1"),
        (_gather_once, "V1"),
        (_lose_gradient, "V7"),
        (_drop_moment, "V12"),
        (_step_further, "V12"),
        (_lose_step, "V12"),
        (_lose_slot, "V12"),
        (_drift, "V2"),
        (_fill_memory, "memory"),
    ],
)
def test_a_point_made_wrong_is_never_proven(
    launches: JudgedLaunches, sabotage: Callable[[JudgedLaunches], None], check: str
) -> None:
    """Each sabotage fails the check that is there for it, with a sentence and what to do."""
    sabotage(launches)
    found = launches.proof()
    assert not found.proven
    assert check in {each.check for each in found.checks if not each.ok}
    assert found.because
    assert found.next_step


NOISY_STEPS = ((9, 0.03), (16, 0.05), (17, 0.05))
"""Steps that are compared, with how far noise alone moves them apart."""


def noisy_steps(
    each: JudgedLaunches, harmed: int = 0, *, times: float = 1.0, decay: float = 0.0, by: float = 1
) -> None:
    """Give point and control a bf16 optimizer's noise, and harm the point in one step."""
    for step, noise in NOISY_STEPS:
        control, point = each.beside.controls[0].files, each.point.files
        each.stepped(control, step, 1.0, noise=noise * by, seed=step + 100)
        harm = {"moved": times, "decay": decay} if step == harmed else {"moved": 1.0}
        each.stepped(point, step, noise=noise * by, seed=step + 200, **harm)


@pytest.mark.parametrize("harm", [{"times": 1.05}, {"times": 0.95}, {"decay": 0.05}])
@pytest.mark.parametrize("step", [9, 16])
def test_a_rate_or_decay_of_its_own_is_seen_below_the_noise_of_the_move(
    launches: JudgedLaunches, step: int, harm: dict[str, float]
) -> None:
    """Also where it begins after a switch's first step, as a schedule that starts anew.

    The whole move is a twentieth apart then, and its noise alone allows more than a tenth.
    """
    noisy_steps(launches)
    assert launches.proof().equivalence == "numerical"
    noisy_steps(launches, step, **harm)
    found = launches.proof()
    assert not found.proven
    failed = [each for each in found.checks if not each.ok]
    assert [each.check for each in failed] == ["V12"]
    assert f"after step {step}" in failed[0].name
    assert "along" in failed[0].sentence


def test_noise_of_a_move_is_noise_in_fp32_as_well(launches: JudgedLaunches) -> None:
    """Where a bias has no gradient, an optimizer that scales each element moves it by chance."""
    for each in (launches.point, *launches.beside.controls, launches.beside.reference):
        each.files.facts.write_text(json.dumps(asdict(JobFacts(products="float32"))))
    for step in (9, 17):
        for each in (launches.point, *launches.beside.controls):
            launches.gradient(each.files, step, np.arange(1.0, 5.0))
    for each in (launches.point, *launches.beside.controls):
        ProfileFolder(each.folder).steps.write_bytes(
            ProfileFolder(launches.beside.reference.folder).steps.read_bytes()
        )
    noisy_steps(launches, by=0.4)
    assert launches.proof().equivalence == "numerical", launches.proof().because
    noisy_steps(launches, 9, times=1.05, by=0.4)
    assert not launches.proof().proven


def test_dropout_is_told_apart_from_a_wrong_layout(launches: JudgedLaunches) -> None:
    """Masks that differ are no noise; the next step names the layers, and both ways out."""
    _harm_gradient(0.3)(launches)
    facts = JobFacts(products="bfloat16", draws=True, dropout=["h.0.drop"])
    launches.point.files.facts.write_text(json.dumps(asdict(facts)))
    found = launches.proof()
    assert not found.proven
    assert "dropout in h.0.drop" in found.next_step
    assert "policy.equivalence" in found.next_step


def test_a_state_that_is_too_large_says_so(launches: JudgedLaunches) -> None:
    """Nothing was gathered, so nothing is proven."""
    launches.point.files.round_trips.unlink()
    facts = JobFacts(products="bfloat16", too_large_bytes=10 << 30)
    launches.point.files.facts.write_text(json.dumps(asdict(facts)))
    found = launches.proof()
    assert not found.proven
    assert "10.0 GiB" in found.because
    assert "--largest-state-gib" in found.next_step


def test_without_a_control_the_dtype_alone_limits(launches: JudgedLaunches, tmp_path: Path) -> None:
    """The sentence says that there was none."""
    alone = replace(launches.beside, controls=())
    found = point_proof(JOB, B, launches.point, alone)
    assert any("no control" in each.sentence for each in found.checks)


def test_a_loss_that_is_no_number_is_not_left_out(launches: JudgedLaunches) -> None:
    """At the point it compares with nothing, so it cannot hold."""
    log = StepLog(ProfileFolder(launches.point.folder).steps)
    log.append(
        StepRow(
            step=12,
            tokens=12,
            loss=math.nan,
            layout="x",
            gpus=1,
            monotonic_s=99.0,
            elapsed_s=1.0,
        )
    )
    log.close()
    found = launches.proof()
    assert found.equivalence == "none"
    assert "V2" in {each.check for each in found.checks if not each.ok}


def test_a_point_is_not_compared_with_a_reference_of_other_code(launches: JudgedLaunches) -> None:
    """Mending the script after the reference was trained needs another reference."""
    for each, code in ((launches.beside.reference, "old"), (launches.point, "mended")):
        facts = replace(each.facts, fingerprint={"torch": "2.13.0", "code_digest": code})
        each.files.facts.write_text(json.dumps(asdict(facts)))
    found = launches.proof()
    assert not found.proven
    assert "the job's code old, now mended" in found.because
    assert "--folder" in found.next_step


@pytest.mark.parametrize(
    "harm",
    [
        {"equivalence": "foo"},
        {"at": "2999-01-01T00:00:00+00:00"},
        {"at": "yesterday"},
        {"at": "2026-11-01T00:00:00"},
        {"checks": 5},
        {"because": None},
        {"tolerance": "x"},
    ],
)
def test_damaged_results_are_refused(
    tmp_path: Path, launches: JudgedLaunches, harm: dict[str, Any]
) -> None:
    """By the file's name; nothing of them is stamped."""
    kept = ValidationProgress(digest="d").with_point(launches.proof())
    (tmp_path / "v").mkdir()
    kept.save(tmp_path / "v")
    assert load(tmp_path / "v", "d") == kept
    data = json.loads((tmp_path / "v" / RESULTS).read_text())
    data["points"][0] |= harm
    (tmp_path / "v" / RESULTS).write_text(json.dumps(data))
    with pytest.raises(InputInvalid, match=r"validation\.json cannot be read"):
        load(tmp_path / "v", "d")


def test_what_launches_of_another_version_left_is_refused(tmp_path: Path) -> None:
    """They did not keep what the checks of this one need."""
    ValidationProgress(digest="d", version=1).save(tmp_path)
    with pytest.raises(InputInvalid, match="another version, which checks otherwise"):
        load(tmp_path, "d")


def test_a_class_without_its_checks_proves_nothing(launches: JudgedLaunches) -> None:
    """The word alone is not believed."""
    honest = launches.proof()
    assert honest.proven
    assert not replace(honest, checks=()).proven
    harmed = replace(honest.checks[0], ok=False)
    assert not replace(honest, checks=(harmed, *honest.checks[1:])).proven
