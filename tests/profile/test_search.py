"""A profile that proposes points by itself: of a job without torch, and of a real one on gloo."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.profile.acting import Act
from tests.profile.test_measuring import REPOSITORY, as_python, profiled
from wattmesh.controller.cost_model.next_point import answer
from wattmesh.controller.process.children import wait_for
from wattmesh.controller.profile.job import ProfileJob, read_job
from wattmesh.controller.profile.next_points import PointSearch, with_proposed
from wattmesh.controller.profile.profile import PROPOSED, Profile, profile
from wattmesh.controller.profile.results import (
    PROGRESS,
    MeasuredPoint,
    ProfileState,
    ProposedPoint,
)
from wattmesh.errors import InputInvalid, SettingsInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.layout import Layout

TRACE = REPOSITORY / "examples" / "demo" / "gb-2023-05-26.csv"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 64,
    "vocab_size": 256,
}
ACT = Act(
    step_s={"dp2": 0.04, "1 rank": 0.064, "tp2": 0.048, "pp2": 0.056},
    watts={"dp2": 500.0, "1 rank": 520.0, "tp2": 300.0, "pp2": 350.0},
    tokens=(128,),
)
PROPOSED_ONE = ProposedPoint(
    id="S1",
    layout=Layout(tp=2),
    clock_mhz=None,
    tokens_per_s=1.0,
    j_per_token=1.0,
    expected_g=None,
    if_true_g=None,
    sentence="",
)
POINTS = {"A": "dp_shard = 2", "B": "dp_shard = 1", "C": "pp = 2"}


def written(folder: Path, *, act: Act = ACT, points: str = "ABC", **keys: Any) -> Path:
    """Write a job file with a search, whose interpreter acts; `keys` of the search."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    search = {
        "gpu": "h100",
        "gpus": [2, 1],
        "hf_config": "config.json",
        "grid": str(TRACE),
        "deadline_h": 20,
        "least_saving": 0.0,
        **keys,
    }
    path = folder / "job.toml"
    path.write_text(
        "\n".join(
            [
                "[job]",
                'name = "act"',
                f'directory = "{REPOSITORY}"',
                f'python = "{as_python(folder, act)}"',
                'command = ["-m", "anything"]',
                "processes = 2",
                'reference = "A"',
                "precision = 0.1",
                "longest_s = 5",
                "silence_limit_s = 20",
                "idle_s = 0.3",
                "warm_switches = false",
                'power = "fake"',
                "tokens_total = 1_000_000",
                "global_batch = 8",
                "seq_len = 16",
                *(f'[[point]]\nid = "{e}"\nlayout = {{ {POINTS[e]} }}' for e in points),
                "[search]",
                *(f"{name} = {_toml(value)}" for name, value in search.items()),
                "",
            ]
        )
    )
    return path


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_toml(each)}' for name, each in value.items())} }}"
    return json.dumps(value)


def command(path: Path) -> list[str]:
    """Give the words that profile a job file."""
    out = ["--out", str(path.with_name("c.toml")), "--json"]
    return [
        *(sys.executable, "-m", "wattmesh.controller.cli.main"),
        *("configs", "profile", str(path), *out),
    ]


def searched(folder: Path, told: list[str], act: Act = ACT, **keys: Any) -> Profile:
    """Profile the acting job with a search."""
    return profiled(folder / "p", act, read_job(written(folder, act=act, **keys)), told)


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Profile, list[str]]:
    """The acting job, searched to the end: where, what was found, what was told."""
    folder, told = tmp_path_factory.mktemp("led"), list[str]()
    return folder, searched(folder, told), told


def test_what_was_just_measured_says_what_is_measured_next(
    led: tuple[Path, Profile, list[str]],
) -> None:
    """One line with its reason before each point, in the same launch, until none is left."""
    folder, found, told = led
    assert [each.id for each in found.catalogue.points] == ["A", "B", "C", "S1"]
    assert found.catalogue.point("S1").layout == Layout(tp=2)
    assert found.progress.launches == 1
    first = next(at for at, each in enumerate(told) if each.startswith("search 1/8: S1 (tp2)"))
    assert re.search(r"would save .* if that is true.* times the watts\)", told[first])
    assert told[first - 1].startswith("C (pp2)  ")
    assert any(each.startswith("S1: ") and "the predicted speed" in each for each in told)
    assert any("it ends; every point that it can run is measured" in each for each in told)
    (proposed,) = found.progress.proposed
    measured = found.progress.point("S1")
    assert measured is not None
    assert 0.3 < measured.tokens_per_s / proposed.tokens_per_s < 3
    text = (folder / "p" / PROPOSED).read_text()
    assert 'id = "S1"\nlayout = { tp = 2 }' in text


def test_the_points_that_it_wrote_are_those_of_a_job_file(
    tmp_path: Path, led: tuple[Path, Profile, list[str]]
) -> None:
    """They stand in `proposed.toml` as one has them, and read back as they were measured."""
    folder, found, _ = led
    path = written(tmp_path)
    path.write_text(f"{path.read_text()}\n{(folder / 'p' / PROPOSED).read_text()}")
    more = read_job(path).points
    assert more == with_proposed(replace(read_job(path), points=more[:3]), found.progress).points


@pytest.mark.parametrize("how", ["refuse", "crash"])
def test_what_the_job_cannot_run_is_told_and_not_proposed_again(tmp_path: Path, how: str) -> None:
    """A layout that is not built, or at which it crashes; also when the profile is called again."""
    told: list[str] = []
    act = replace(ACT, fails={"tp2": how})
    keys: dict[str, Any] = {"micro_batches": [1, 2], "degrees": {"tp": [2]}}
    found = searched(tmp_path, told, act, **keys)
    assert [each.id for each in found.progress.proposed] == ["S1"]
    assert found.progress.unfit == ("S1",)
    assert "S1" in found.progress.refused
    assert any("it ends; every point that it can run" in each for each in told)
    assert [each.id for each in found.catalogue.points] == ["A", "B", "C"]
    again = searched(tmp_path, told, act, **keys)
    assert again.progress == found.progress


def test_a_job_that_the_model_does_not_know_is_refused_before_it_begins(tmp_path: Path) -> None:
    """With two layouts there is a scale and nothing that says whether it holds."""
    with pytest.raises(InputInvalid, match=r"knows nothing of this job: hidden_size is 32.*Declar"):
        searched(tmp_path, [], points="AB")
    assert not (tmp_path / "p").exists()


def state(**speeds: float) -> ProfileState:
    """What was measured at the points, by their tokens per second."""
    points = tuple(
        MeasuredPoint(
            id=name,
            tokens_per_s=rate,
            power_w=1000.0,
            gpu_power_w=1000.0,
            host_power_w=None,
            parked_w=None,
            memory_gib=1.0,
            step_s=128 / rate,
            boundary_s=0.0,
            speed_share=0.01,
            share=0.01,
            samples=9,
            steps=90,
            seconds=9.0,
            settled=True,
        )
        for name, rate in speeds.items()
    )
    return ProfileState(digest="", points=points)


@pytest.mark.parametrize(
    ("known", "keys", "words"),
    [
        (state(A=1e4, B=5e3, C=8e3), {}, "search 1/8: S1 (tp2) is next"),
        (state(A=1e4, B=5e3, C=8e3), {"least_saving": 0.9}, "none of the others is expected to "),
        (state(A=1e4, B=5e3, C=500), {}, "times off one common factor, so they foresee nothing"),
        (state(A=1e4, B=5e3), {}, "only 2 of the 3 layouts that it takes"),
        (state(A=1e4, B=5e3, C=8e3), {"tokens": 1e15}, "no measured point makes the deadline"),
        (
            replace(state(A=1e4), points=(replace(state(A=1e4).points[0], step_s=0.01),)),
            {},
            "a step of A trains 100 tokens, and job.global_batch * job.seq_len is 128",
        ),
        (
            replace(state(A=1e4, B=5e3, C=8e3), proposed=(PROPOSED_ONE,)),
            {"most": 1},
            "1 points were proposed, the limit (search.most)",
        ),
    ],
)
def test_why_a_search_goes_on_or_ends(
    tmp_path: Path, known: ProfileState, keys: dict[str, Any], words: str
) -> None:
    """One sentence: the proposal, or what ends it; and after its end nothing is asked any more."""
    job = read_job(written(tmp_path, **keys))
    told: list[str] = []
    assert job.search is not None
    search = PointSearch(job.search, told.append)
    after = search.propose(job, known, clocks=True)
    assert words in told[0]
    assert len(after.proposed) - len(known.proposed) == (" is next" in words)
    assert " is next" in words or search.propose(job, known, clocks=True) is known
    assert len(told) == 1


def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL once a point is proposed: it is measured then, and not proposed a second time."""
    path = written(tmp_path, micro_batches=[1, 2], most=2, gpus=[2])
    kept = tmp_path / "c.profile" / PROGRESS
    process = subprocess.Popen(command(path), cwd=REPOSITORY, stdout=subprocess.DEVNULL)

    def kept_state() -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(kept.read_text())
        except OSError:
            return {"proposed": [], "points": []}
        return found

    try:
        wait_for(lambda: bool(kept_state()["proposed"]), limit_s=120, what="The proposal")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
    before = kept_state()
    done = subprocess.run(
        command(path), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    after = kept_state()
    assert after["proposed"][: len(before["proposed"])] == before["proposed"]
    assert [each["id"] for each in after["proposed"]] == ["S1", "S2"]
    assert after["points"][: len(before["points"])] == before["points"]
    answered = json.loads(done.stdout)
    assert [each["id"] for each in answered["points"]] == ["A", "B", "C", "S1", "S2"]
    assert [each["id"] for each in answered["proposed"]] == ["S1", "S2"]
    assert catalogue_file.load(tmp_path / "c.toml").point("S2").layout.world_size == 2


def test_mistakes_of_the_table_are_named_at_once(tmp_path: Path) -> None:
    """Wrong types, wrong ranges, contradictions, unknown keys: one list, with the job's own."""
    path = written(
        tmp_path,
        gpus=[3],
        most=0,
        model="llama3-8b",
        clocks_mhz=[1200],
        highest_mhz=1200,
        zero=4,
        micro_batches=["two"],
        colour="red",
        deadline_h=1e9,
        least_saving=2,
    )
    path.write_text(path.read_text().replace("seq_len = 16", ""))
    path.write_text(f"{path.read_text()}\n[search.degrees]\ntp = []\ndepth = [1]\n")
    with pytest.raises(SettingsInvalid) as caught:
        read_job(path)
    assert {key for key, _ in caught.value.mistakes} == {
        "search.gpus",
        "search.most",
        "search.model",
        "search.highest_mhz",
        "search.zero",
        "search.micro_batches",
        "search.colour",
        "search.deadline_h",
        "search.least_saving",
        "search.tokens",
        "search.degrees.tp",
        "search.degrees.depth",
    }
    path.write_text(path.read_text().partition("[search]")[0].replace("[job]", "search = 3\n[job]"))
    with pytest.raises(SettingsInvalid, match="search"):
        read_job(path)


QUESTION = {
    "search": {
        "gpu": "h100",
        "gpus": [],
        "model": "llama3-8b",
        "hf_config": "",
        "grid": str(TRACE),
        "deadline_h": 20,
        "most": 8,
        "least_saving": 0.01,
        "clocks_mhz": [1200],
        "highest_mhz": 1980,
        "zero": 1,
        "micro_batches": [1, 2],
        "recompute": False,
        "degrees": {},
    },
    "processes": 16,
    "global_batch": 64,
    "seq_len": 8192,
    "tokens": 2e9,
    "processors": False,
    "has_node": False,
    "layouts": ["dp8 tp2"],
    "measured": [],
    "known": [],
    "refused": [],
    "unfit": [],
    "clocks": True,
}


def asked(measured: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """Answer the question above, with changes to its search."""
    return answer(
        {
            **QUESTION,
            "search": {**QUESTION["search"], **changes},  # type: ignore[dict-item]
            "measured": measured,
            "known": measured,
        }
    )


def measured_at(tokens_per_s: float, power_w: float) -> list[dict[str, Any]]:
    """One measured point of a model that is known."""
    layout = Layout(dp_shard=8, tp=2, micro_batch=1).to_dict()
    return [
        {
            "id": "A",
            "layout": layout,
            "clock_mhz": None,
            "tokens_per_s": tokens_per_s,
            "power_w": power_w,
        }
    ]


def test_a_known_model_needs_one_measured_point_and_is_corrected_by_it() -> None:
    """Half the speed and half the watts there: about as much in every proposal."""
    full = asked(measured_at(100_000, 10_000))["next"]
    half = asked(measured_at(50_000, 5_000))["next"]
    assert half["slower"] == pytest.approx(2 * full["slower"])
    assert half["thirstier"] == pytest.approx(full["thirstier"] / 2)
    assert 0.4 < half["tokens_per_s"] / full["tokens_per_s"] < 0.9
    assert half["expected_g"] > 0


def test_what_a_lower_clock_did_once_it_does_to_other_layouts() -> None:
    """Slower and dearer than predicted there: so are the next proposals at it, or at another."""
    full, limits = measured_at(100_000, 10_000), {"micro_batches": [1], "degrees": {"cp": [1]}}
    first = asked(full, **limits)["next"]
    assert first["clock_mhz"] == 1200
    slow = {
        "id": "S1",
        "layout": first["layout"],
        "clock_mhz": 1200,
        "tokens_per_s": first["tokens_per_s"],
        "power_w": first["tokens_per_s"] * first["j_per_token"],
    }
    usual = asked([*full, slow], **limits, least_saving=0.0)["next"]
    assert usual["clock_mhz"] == 1200
    little = {**slow, "tokens_per_s": 0.97 * slow["tokens_per_s"]}
    after = asked([*full, little], **limits, least_saving=0.0)["next"]
    assert after["layout"] == usual["layout"]
    assert after["tokens_per_s"] == pytest.approx(0.97 * usual["tokens_per_s"])
    assert after["j_per_token"] == pytest.approx(usual["j_per_token"] / 0.97)
    half = {**slow, "tokens_per_s": slow["tokens_per_s"] / 2}
    assert asked([*full, half], **limits, least_saving=0.0)["next"]["clock_mhz"] is None


def test_only_what_can_be_run_is_proposed() -> None:
    """Clocks that cannot be set, degrees and micro batches that the job lacks are left out."""
    mine = measured_at(100_000, 10_000)
    clocked = asked(mine)["next"]
    assert clocked["clock_mhz"] == 1200
    question = {**QUESTION, "measured": mine, "known": mine, "clocks": False}
    assert answer(question)["next"]["clock_mhz"] is None
    narrow = asked(mine, degrees={"pp": [1], "cp": [1]}, micro_batches=[2])["next"]["layout"]
    assert (narrow["pp"], narrow["cp"], narrow["micro_batch"]) == (1, 1, 2)
    unfit = answer({**QUESTION, "measured": mine, "known": mine, "unfit": [clocked["layout"]]})
    degrees = ("pp", "dp_shard", "cp", "tp")
    assert [unfit["next"]["layout"][name] for name in degrees] != [
        clocked["layout"][name] for name in degrees
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": "cpu"}, "no GPU is known as 'cpu'.*of processors, the cost model knows nothing"),
        ({"model": "mine"}, "'mine' is not known"),
        ({"degrees": {"tp": [3]}}, r"none of the last \d+ keeps to search.degrees.tp = \[3\]"),
        ({"gpu": "a100-40gb", "degrees": {"tp": [1], "pp": [1]}, "zero": 0}, "fits into memory"),
        ({"grid": "/nowhere.csv"}, "nowhere.csv"),
        ({"deadline_h": 4000}, "longer trace"),
    ],
)
def test_what_cannot_be_searched_says_why(changes: dict[str, Any], words: str) -> None:
    """Unknown GPUs and models, an empty space with the constraint that empties it, no grid."""
    with pytest.raises(InputInvalid, match=words):
        asked([], **changes)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "no JSON"),
        ("[]", "not the config.json of a model"),
        ('{"model_type": "mamba"}', "model_type 'mamba' is not known"),
        ('{"model_type": "llama", "hidden_size": 32}', "is missing"),
    ],
)
def test_a_wrong_config_json_says_what_is_wrong(tmp_path: Path, config: str, words: str) -> None:
    """No JSON, another thing's JSON, an unknown architecture, missing keys."""
    path = tmp_path / "config.json"
    path.write_text(config)
    with pytest.raises(InputInvalid, match=words):
        asked([], model="", hf_config=str(path))


def test_a_search_that_cannot_be_is_refused_before_the_job_begins(tmp_path: Path) -> None:
    """One sentence with the key of the job file and the path; nothing is started."""
    path = written(tmp_path)
    (tmp_path / "config.json").write_text("{")
    done = subprocess.run(
        command(path), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "[search] cannot be used: search.hf_config" in done.stderr
    assert "no JSON" in done.stderr
    assert not (tmp_path / "c.profile").exists()


def test_a_real_job_is_led_to_a_point_that_nobody_declared(tmp_path: Path) -> None:
    """The example trainer on two gloo ranks, with fake GPUs that its file asks for."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    search = read_job(written(tmp_path, most=1, gpus=[2])).search
    usual = read_job(Path("examples/pretrain/profile.toml"))
    job: ProfileJob = replace(
        usual,
        command=(
            *("-m", "examples.pretrain", "--preset", "tiny", "--steps", "{steps}"),
            *("--layout", "dp_shard=2", "--boundary-every", "{every}"),
            *("--losses", "{losses}", "--checkpoint-dir", "{checkpoints}"),
        ),
        processes=2,
        points=read_job(written(tmp_path)).points,
        tokens_per_step=128,
        tokens_total=1_000_000,
        seq_len=16,
        intervals=2,
        precision=0.2,
        search=search,
    )
    told: list[str] = []
    found = profile(job, tmp_path / "work", told.append)
    assert found.progress.launches == 1
    point = found.catalogue.point("S1")
    assert point.layout == Layout(tp=2)
    assert point.sources["power_w"] == "simulated"
    assert point.fingerprint is not None
    assert ("C", "S1") in {(each.origin, each.target) for each in found.catalogue.switch.pairs}
