"""Whole profiles of a job without torch, whose speed and watts are known; and of one that fails."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import messages
from tests.profile.acting import PARKED_W, Act
from wattmesh.controller.process.children import ChildFailed, wait_for
from wattmesh.controller.profile.job import Candidate, JobPower, PowerKind, ProfileJob
from wattmesh.controller.profile.launch import LogGrowth
from wattmesh.controller.profile.measured import catalogue_of, with_proofs
from wattmesh.controller.profile.profile import Profile, profile
from wattmesh.controller.profile.results import PROGRESS, load
from wattmesh.controller.profile.walk import ProfileWalk
from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, Evidence, PowerScope, Release
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Progress
from wattmesh.telemetry.fake_nvml import FakeNvml

REPOSITORY = Path(__file__).resolve().parents[2]
A = Candidate(id="A", layout=Layout(dp_shard=2))
B = Candidate(id="B", layout=Layout())
C = Candidate(id="C", layout=Layout(tp=2))
ACT = Act(
    step_s={"dp2": 0.004, "1 rank": 0.006, "tp2": 0.1},
    watts={"dp2": 500.0, "1 rank": 300.0, "tp2": 600.0},
)
JOB = ProfileJob(
    name="act",
    directory=REPOSITORY,
    command=("act",),
    processes=2,
    reference="A",
    points=(A, B),
    power=JobPower(kind=PowerKind.FAKE),
    tokens_total=1000,
    every=3,
    intervals=3,
    precision=0.1,
    longest_s=3.0,
    idle_s=0.3,
    silence_limit_s=5.0,
    digest="one",
)


def shell(act: Act) -> str:
    """Give the shell's line that acts, as rank 0 below the launcher."""
    return f"RANK=0 ACT='{act.to_text()}' {sys.executable} -m tests.profile.acting; exit $?"


def profiled(
    folder: Path, act: Act = ACT, job: ProfileJob = JOB, told: list[str] | None = None
) -> Profile:
    """Profile the acting job."""

    def launcher(job: ProfileJob, command: Sequence[str]) -> Sequence[str]:
        return ["sh", "-c", shell(act)]

    said = told if told is not None else []
    return profile(job, folder, said.append, launcher=launcher)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, list[str]]:
    """A profile of three points; the third is slower and thirstier than both others."""
    told: list[str] = []
    job = replace(JOB, points=(A, B, C))
    # So far apart that a busy machine does not make one of A and B dominate the other.
    act = replace(ACT, step_s={"dp2": 0.02, "1 rank": 0.04, "tp2": 0.4})
    return profiled(tmp_path_factory.mktemp("three") / "p", act, job, told), told


def test_every_number_is_what_the_devices_and_the_clock_say(
    three: tuple[Profile, list[str]],
) -> None:
    """Watts by component, speed with its interval, idle and parked watts, pairs cold and warm."""
    found = three[0].catalogue
    a, b, _ = found.points
    assert a.power_w == a.gpu_power_w == pytest.approx(1000, rel=0.1)
    assert b.power_w == pytest.approx(300, rel=0.1)
    # A step takes at least as long as it sleeps, on a busy machine longer.
    assert 0 < a.tokens_per_s <= 100 / 0.02
    assert a.spread is not None
    assert a.speed_spread is not None
    assert 0 < a.speed_spread < a.spread
    assert a.samples >= 3
    assert a.parked_power_w is None
    assert b.parked_power_w == pytest.approx(PARKED_W, rel=0.1)
    assert found.idle_power_w_per_gpu == pytest.approx(PARKED_W, rel=0.1)
    assert (found.release, found.power_scope) == (Release.PARKED, PowerScope.GPU)
    assert a.memory_gib is not None
    pairs = {(each.origin, each.target): each for each in found.switch.pairs}
    assert {("A", "B"), ("B", "C"), ("C", "A")} == pairs.keys()
    assert pairs["A", "B"].warm_s is not None
    assert pairs["C", "A"].seconds >= 0
    assert {each.evidence for each in found.points} == {Evidence.MEASURED}
    assert a.fingerprint is not None
    assert "fake" in str(a.fingerprint.driver)
    assert a.fingerprint.gpu_models


def test_what_nothing_paces_was_measured_and_fake_watts_were_not(
    three: tuple[Profile, list[str]],
) -> None:
    """A speed that the clock gave is measured, even beside simulated watts."""
    found = three[0].catalogue
    assert found.points[0].sources["tokens_per_s"] == "measured"
    assert found.points[0].sources["power_w"] == "simulated"
    assert "tokens_per_s" not in found.simulated
    assert "power_w" in found.simulated


def test_a_dominated_point_is_cut_short_and_says_by_what(
    three: tuple[Profile, list[str]],
) -> None:
    """It has numbers, with the interval it got to; the others were not cut."""
    by_id = {each.id: each.dominated_by for each in three[0].catalogue.points}
    assert by_id["A"] == by_id["B"] == ""
    assert by_id["C"] in ("A", "B")
    assert any("cut short" in each for each in three[1])


def test_a_catalogue_reads_back_with_all_that_was_measured(
    three: tuple[Profile, list[str]], tmp_path: Path
) -> None:
    """Every new key survives the file."""
    path = tmp_path / "catalogue.toml"
    written = catalogue_file.save(three[0].catalogue, path)
    assert replace(written, digest="") == three[0].catalogue
    assert catalogue_file.load(path) == written
    assert catalogue_of(replace(JOB, points=(A, B, C)), three[0].progress) == three[0].catalogue


def test_a_proof_stays_where_what_was_proven_is_the_same(
    three: tuple[Profile, list[str]],
) -> None:
    """The same fingerprint, layout and clock, of the reference too; in all else it is lost."""
    found = three[0].catalogue
    stamp = {"evidence": Evidence.VALIDATED, "tolerance": 1e-6, "validated_by": "me"}

    def proven(catalogue: Catalogue, **changes: object) -> list[str]:
        points = tuple(
            replace(each, **stamp, **(changes if each.id == "B" else {}))  # type: ignore[arg-type]
            for each in catalogue.points
        )
        kept = with_proofs(found, replace(catalogue, points=points))
        assert [each.power_w for each in kept.points] == [each.power_w for each in found.points]
        return [each.id for each in kept.points if each.tolerance == 1e-6]

    assert found.points[1].fingerprint is not None
    assert proven(found) == ["A", "B", "C"]
    other = replace(found.points[1].fingerprint, driver="other")
    more = replace(found.points[1].fingerprint, code_digest="of code")
    assert proven(found, fingerprint=other) == ["A", "C"]
    assert proven(found, fingerprint=more) == ["A", "C"]
    assert proven(found, fingerprint=None) == ["A", "C"]
    assert proven(found, clock_mhz=1200) == ["A", "C"]
    assert proven(replace(found, reference="B"), fingerprint=other) == []
    assert proven(replace(found, global_batch=7)) == []


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("crash", "failed with status 1 .*ValueError: shapes do not match"),
        ("memory", "ran out of memory at B .*smaller micro batch"),
        ("end", "ended by itself at B .*session.done"),
        ("refuse", "the job did not reach it: the probe moved"),
    ],
)
def test_a_point_that_fails_is_left_out_and_the_others_are_kept(
    tmp_path: Path, how: str, sentence: str
) -> None:
    """One launch is lost; the next goes on with what is left, and the sentence is B's."""
    job = replace(JOB, points=(A, B, C), warm_switches=False)
    found = profiled(tmp_path / "p", replace(ACT, fails={"1 rank": how}), job)
    assert [each.id for each in found.catalogue.points] == ["A", "C"]
    assert re.search(sentence, found.progress.refused["B"])
    assert found.progress.launches == (1 if how == "refuse" else 2)


def test_a_point_that_hangs_is_ended(tmp_path: Path) -> None:
    """No step for as long as the file allows."""
    job = replace(JOB, warm_switches=False)
    found = profiled(tmp_path / "p", replace(ACT, fails={"1 rank": "hang"}), job)
    assert "the job hung at B (1 rank) after step" in found.progress.refused["B"]
    assert "silence_limit_s" in found.progress.refused["B"]


def test_the_last_step_of_a_hung_job_is_not_missed_in_its_log(tmp_path: Path) -> None:
    """It is heard a moment after its line was seen, and then no step and no line comes."""
    log, job = tmp_path / "steps.jsonl", replace(JOB, silence_limit_s=5.0)
    walk = ProfileWalk([A, B], lambda _: None)
    growth, began_s = LogGrowth(log), time.monotonic()

    def stalled(step: int, after_s: float) -> bool:
        """Whether it says so `after_s`, when `step` was just heard, or was heard before."""
        if walk.newest is None or step > walk.newest.step:
            walk.newest = Progress.from_json(messages.progress(step=step))
            walk.heard_s = began_s + after_s
        return growth.stalled(job, walk, began_s + after_s) is not None

    log.write_text("1\n")
    assert not stalled(1, 0.0)
    assert not stalled(2, 0.1)
    assert not stalled(2, 60.0)
    assert stalled(3, 60.1)


def test_a_job_that_takes_no_order_is_ended(tmp_path: Path) -> None:
    """It reports step after step, so it never hangs; it would train for ever."""
    job = replace(JOB, warm_switches=False, silence_limit_s=6.0)
    found = profiled(tmp_path / "p", replace(ACT, never="boundary"), job)
    assert [each.id for each in found.catalogue.points] == ["A"]
    assert "never took the order" in found.progress.refused["B"]
    assert "session.boundary()" in found.progress.refused["B"]


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (replace(ACT, fails={"dp2": "crash"}), "failed with status 1 at A .*job.log"),
        (replace(ACT, never="attach"), "never called `wattmesh.attach` within 2 s"),
        (replace(ACT, never="report"), "attached, and reported no step within 20 s"),
        (replace(ACT, layout="tp2"), "begins in tp2, its reference A is dp2"),
        (replace(ACT, tokens=(0,)), "reports 0 to 0 tokens"),
        (replace(ACT, tokens=(100, 90)), "reports 90 to 100 tokens"),
        (replace(ACT, loss=math.nan), "no loss that is a finite number"),
        (replace(ACT, tokens=(50,)), "50 tokens for a step, its file says tokens_per_step = 100"),
        (replace(ACT, idle=True), "what is read is idle"),
    ],
)
def test_a_job_that_cannot_be_measured_says_why(tmp_path: Path, act: Act, sentence: str) -> None:
    """One clear sentence each, and no catalogue."""
    # One has to attach within its limit, on a busy machine too; another never does.
    limits_s = {"attach": 2.0, "report": 20.0}
    start_limit_s = limits_s.get(act.never, 180.0)
    # What is hardly known on a machine that stood still is measured for longer.
    job = replace(JOB, tokens_per_step=100, start_limit_s=start_limit_s, longest_s=60.0)
    with pytest.raises(WattmeshError, match=sentence):
        profiled(tmp_path / "p", act, job)


def test_a_job_that_trains_another_batch_than_its_file_states_is_refused(tmp_path: Path) -> None:
    """Also where nobody states the tokens of a step."""
    job = replace(JOB, global_batch=7, seq_len=16, start_limit_s=180.0)
    with pytest.raises(WattmeshError, match="reports 100 tokens for a step, and its file says "):
        profiled(tmp_path / "p", ACT, job)


def test_a_counter_that_is_reset_is_left_out_of_the_window(tmp_path: Path) -> None:
    """The watts are those of the time after it."""
    found = profiled(tmp_path / "p", replace(ACT, resets=True), replace(JOB, warm_switches=False))
    assert found.catalogue.points[0].power_w == pytest.approx(1000, rel=0.1)


def test_a_profile_goes_on_after_a_failure_with_what_it_has(tmp_path: Path) -> None:
    """What was measured is not measured again; what failed is tried again."""
    first = profiled(tmp_path / "p", replace(ACT, fails={"1 rank": "crash"}))
    again = profiled(tmp_path / "p")
    assert again.progress.point("A") == first.progress.point("A")
    assert [each.id for each in again.catalogue.points] == ["A", "B"]
    with pytest.raises(InputInvalid, match="another job file"):
        profiled(tmp_path / "p", job=replace(JOB, digest="two"))
    kept = tmp_path / "p" / PROGRESS
    kept.write_text(kept.read_text().replace('"driver": "', '"driver": "other '))
    with pytest.raises(InputInvalid, match=r"driver other .*here is .*go on where it was begun"):
        profiled(tmp_path / "p", job=replace(JOB, points=(A, B, C)))
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "mine").touch()
    with pytest.raises(InputInvalid, match="is not empty"):
        profiled(tmp_path / "q")


def as_python(folder: Path, act: Act) -> Path:
    """Give an interpreter that acts, whatever it is asked to run."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{shell(act)}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    """The command line, for a job file whose interpreter acts."""

    def made(act: Act = ACT, power: str = 'power = "fake"') -> list[str]:
        (tmp_path / "job.toml").write_text(
            f"""
            [job]
            name = "act"
            directory = "{REPOSITORY}"
            python = "{as_python(tmp_path, act)}"
            command = ["-m", "anything"]
            processes = 2
            reference = "A"
            precision = 0.1
            idle_s = 0.3
            longest_s = 15
            warm_switches = false
            {power}
            [[point]]
            id = "A"
            layout = {{ dp_shard = 2 }}
            [[point]]
            id = "B"
            layout = {{ dp_shard = 1 }}
            """
        )
        out = ["--out", str(tmp_path / "c.toml"), "--json"]
        return [*(sys.executable, "-m", "wattmesh.controller.cli.main"), *_PROFILE, *out]

    _PROFILE = ("configs", "profile", str(tmp_path / "job.toml"))
    return made


@pytest.mark.parametrize("killed_at", ["start", "first step", "point"])
def test_a_killed_profile_resumes(
    tmp_path: Path, command: Callable[..., list[str]], killed_at: str
) -> None:
    """SIGKILL in each phase; the same command then finishes, and begins nothing twice."""
    place = tmp_path / "c.profile"
    slow = replace(ACT, step_s={**ACT.step_s, "1 rank": 1.0})
    process = subprocess.Popen(command(slow), cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    marks = {
        "start": (place / PROGRESS).exists,
        "first step": lambda: any(place.glob("launch-1/steps.jsonl")),
        "point": lambda: (place / PROGRESS).exists() and '"id": "A"' in _text(place / PROGRESS),
    }
    try:
        wait_for(marks[killed_at], limit_s=60, what="The profile")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
    kept = json.loads(_text(place / PROGRESS))["points"]
    done = subprocess.run(command(), cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [each["id"] for each in answer["points"]] == ["A", "B"]
    assert [each for each in answer["measured"] if each["id"] == "A"][: len(kept)] == [
        {**each, "j_per_token": each["power_w"] / each["tokens_per_s"]} for each in kept
    ]


def _text(path: Path) -> str:
    return path.read_text()


def test_the_hosts_own_counters_measure_without_any_gpu(
    tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    """`power = rapl`: watts of the node, measured; nothing is simulated."""
    zone = tmp_path / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, text in {
        "name": "package-0",
        "energy_uj": "1000",
        "max_energy_range_uj": "262143328850",
    }.items():
        (zone / name).write_text(text)
    act = replace(ACT, powercap=str(zone.parent))
    power = f'power = "rapl"\n[power]\npowercap = "{zone.parent}"'
    done = subprocess.run(
        command(act, power), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    a = answer["points"][0]
    assert a["power_w"] == pytest.approx(500, rel=0.15)
    assert a["sources"] == {
        "tokens_per_s": "measured",
        "power_w": "measured",
        "memory_gib": "measured",
    }
    assert answer["simulated"] == []
    assert catalogue_file.load(tmp_path / "c.toml").power_scope is PowerScope.NODE


def test_a_clock_is_locked_for_its_point_alone(tmp_path: Path) -> None:
    """The same layout at another clock needs no switch, and the next point is free again."""
    slow = Candidate(id="A1", layout=A.layout, clock_mhz=900)
    job = replace(JOB, points=(A, slow, B), warm_switches=False)
    told: list[str] = []
    found = profiled(tmp_path / "p", job=job, told=told).catalogue
    assert [(each.id, each.clock_mhz) for each in found.points] == [
        ("A", None),
        ("A1", 900),
        ("B", None),
    ]
    assert [(each.origin, each.target) for each in found.switch.pairs] == [("A", "B")]
    gpus = FakeNvml.open(tmp_path / "p" / "launch-1" / "gpus")
    assert [each.truth().lock_mhz for each in gpus.gpus] == [None, None]
    static = JobPower(kind=PowerKind.STATIC, watts=250, idle_watts=60)
    other = profiled(tmp_path / "q", job=replace(job, power=static))
    assert "clock cannot be set: no actuator answers at" in other.progress.refused["A1"]


def test_assumed_watts_stay_assumed(tmp_path: Path) -> None:
    """`power = static`: never measured, and no idle draw to be refused."""
    power = JobPower(kind=PowerKind.STATIC, watts=250, idle_watts=60)
    found = profiled(tmp_path / "p", job=replace(JOB, power=power, warm_switches=False))
    a, b = found.catalogue.points
    assert (a.power_w, b.power_w) == (500, 250)
    assert a.sources["power_w"] == "assumed"
    assert found.catalogue.switch.source == "assumed"
    assert found.catalogue.simulated == ()
    assert found.catalogue.idle_power_w_per_gpu == 60


@pytest.mark.parametrize(
    ("power", "sentence"),
    [
        (JobPower(kind=PowerKind.NVML, library="/nowhere.so"), "cannot be read"),
        (JobPower(kind=PowerKind.RAPL, powercap="/nowhere"), "no RAPL zone in /nowhere"),
        (
            JobPower(kind=PowerKind.AUTO, library="/nowhere.so", powercap="/nowhere"),
            'no power can be read .* "static" with .power. watts',
        ),
        (JobPower(kind=PowerKind.AGENT, url="http://127.0.0.1:9/"), "is wattmesh-agent running"),
    ],
)
def test_no_power_is_a_sentence_and_never_a_fake(
    tmp_path: Path, power: JobPower, sentence: str
) -> None:
    """Nothing is simulated that nobody asked for, and nothing is started."""
    with pytest.raises(InputInvalid, match=sentence):
        profiled(tmp_path / "p", job=replace(JOB, power=power))
    assert not list((tmp_path / "p").glob("launch-*/job.log"))


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    """`python` must be a program."""
    with pytest.raises(InputInvalid, match=r"job\.python: /no/python is no program"):
        profiled(tmp_path / "p", job=replace(JOB, python="/no/python"))
    with pytest.raises(ChildFailed):
        profiled(tmp_path / "p", replace(ACT, fails={"dp2": "memory"}))
    assert load(tmp_path / "p", "one").points == ()
