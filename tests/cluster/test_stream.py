"""`wattmesh policy bench --jobs`: a file of jobs, under every rule, and what is refused."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.builders.replays import days
from tests.replay.test_bench import trace
from wattmesh.controller.cli.main import main
from wattmesh.controller.cli.policy.stream_screen import screen
from wattmesh.controller.replay import stream_bench, stream_file
from wattmesh.controller.replay.stream_bench import bench_stream
from wattmesh.controller.replay.stream_rows import RULES, StreamResult, peer_of
from wattmesh.errors import FixInput
from wattmesh.policies.cluster.rules.first_come import first_come

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
CATALOGUE = EXAMPLES / "catalogues" / "llama-8b.toml"
CLUSTER = "[cluster]\ngpus = 64\nidle_power_w_per_gpu = 100\ncap_w = 60000\n"


def job_text(name: str, arrival_h: float, deadline_h: float, hours: float, more: str = "") -> str:
    """One job of a file."""
    return (
        f'[[job]]\nname = "{name}"\ncatalogue = "{CATALOGUE}"\narrival_h = {arrival_h}\n'
        f"deadline_h = {deadline_h}\nhours = {hours}\n{more}"
    )


def written(folder: Path, text: str) -> Path:
    """A file of jobs."""
    path = folder / "jobs.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> StreamResult:
    """Three jobs that compete for 64 GPUs over two days."""
    folder = tmp_path_factory.mktemp("stream")
    text = CLUSTER + "[[cap]]\nfrom_h = 10\nuntil_h = 12\nwatts = 30000\n"
    text += job_text("a", 0, 20, 6) + job_text("b", 2.5, 30, 6) + job_text("c", 4, 34, 5)
    stream = stream_file.load(written(folder, text))
    told: list[int] = []
    result = bench_stream(stream, days(5), told.append)
    assert sum(told) == len(RULES) + 1
    return result


def test_every_rule_has_a_row_and_none_is_below_the_bound(found: StreamResult) -> None:
    """All keep cap and GPUs, and do the work; the joint plans emit no more than the best other."""
    assert tuple(each.policy for each in found.rows) == RULES
    assert found.bound_g is not None
    for row in found.rows:
        assert row.cap_exceeded_s == row.gpus_exceeded_s == 0
        assert all(each.done_h is not None for each in row.jobs)
        assert not row.bounded or row.carbon_g >= found.bound_g * (1 - 1e-9)
    ahead = found.row("joint-ahead")
    assert ahead.lost == ()
    assert ahead.bounded
    assert ahead.carbon_g <= found.row("first-come").carbon_g


def test_grams_of_jobs_and_idle_gpus_sum_to_the_cluster(found: StreamResult) -> None:
    """Nothing is charged twice, or to nobody."""
    for row in found.rows:
        assert sum(each.carbon_g for each in row.jobs) + row.idle_g == pytest.approx(row.carbon_g)


def test_a_share_is_told_only_where_there_is_something_to_gain(found: StreamResult) -> None:
    """The peer itself has none of it, and a bound beside the peer gives no share."""
    near = replace(found, bound_g=found.row(found.peer).carbon_g * 0.995)
    assert near.share_of_bound_gain(found.peer) is None
    far = replace(found, bound_g=found.row(found.peer).carbon_g / 2)
    if far.row(found.peer).bounded:
        assert far.share_of_bound_gain(found.peer) == 0.0
    assert replace(found, bound_g=None).share_of_bound_gain(found.peer) is None


def test_a_rule_that_is_later_than_the_bound_allows_has_no_share(found: StreamResult) -> None:
    """Sabotaged twin: the same row, late, is not compared."""
    late = tuple(replace(each, bounded=False) for each in found.rows)
    far = replace(found, rows=late, bound_g=1.0)
    assert far.share_of_bound_gain("joint-ahead") is None


def test_the_peer_is_a_rule_whose_grams_can_be_compared(found: StreamResult) -> None:
    """One that takes longer than the bound allows is none, however little it emits."""
    thrifty: dict[str, dict[str, Any]] = {
        "greedy": {"carbon_g": 9e5, "bounded": True, "lost": ()},
        "each-alone": {"carbon_g": 8e5, "bounded": True, "lost": ()},
    }
    rows = [replace(each, **thrifty.get(each.policy, {})) for each in found.rows]
    assert peer_of(rows) == "each-alone"
    thrifty["each-alone"] |= {"bounded": False, "carbon_g": 1.0}
    rows = [replace(each, **thrifty.get(each.policy, {})) for each in found.rows]
    assert peer_of(rows) == "greedy"
    thrifty["greedy"] |= {"bounded": False}
    rows = [replace(each, **thrifty.get(each.policy, {})) for each in found.rows]
    alone = replace(found, rows=tuple(rows), peer=peer_of(rows), bound_g=1.0)
    assert alone.share_of_bound_gain("joint-ahead") is None


@pytest.mark.parametrize("watts", [20_000, 10_000])
def test_a_cap_that_falls_below_what_no_run_can_leave_is_planned_for(
    tmp_path: Path, watts: int
) -> None:
    """`first-come` cannot switch under it any more, and stays; the joint plan keeps the cap."""
    catalogue = EXAMPLES / "catalogues" / "moe-16b.toml"
    text = (
        "[cluster]\ngpus = 96\nidle_power_w_per_gpu = 0\ncap_w = 200000\n"
        "[[cap]]\nfrom_h = 7\nuntil_h = 10\nwatts = 40000\n"
        f"[[cap]]\nfrom_h = 10\nuntil_h = 11\nwatts = {watts}\n"
    )
    text += job_text("a", 0, 10, 5).replace(str(CATALOGUE), str(catalogue))
    result = bench_stream(stream_file.load(written(tmp_path, text)), days(5))
    first = result.row("first-come")
    assert (first.cap_exceeded_s > 0) is (watts == 10_000)
    assert not first.bounded
    assert result.row(result.peer).bounded
    for policy in ("joint", "joint-ahead"):
        row = result.row(policy)
        assert row.cap_exceeded_s == row.gpus_exceeded_s == 0
        assert all(each.done_h is not None for each in row.jobs)


def test_intervals_that_nobody_recorded_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], found: StreamResult
) -> None:
    """A value that was filled in is not taken for a recorded one."""
    series = trace(tmp_path / "gaps.csv", days(4))
    lines = series.read_text("utf-8").splitlines(keepends=True)
    series.write_text("".join((*lines[:20], *lines[50:])), "utf-8")
    path = written(tmp_path, CLUSTER + job_text("a", 0, 9, 3))
    words = ["policy", "bench", "--jobs", str(path), "--trace", str(series)]
    assert main([*words, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["streams"]
    assert (told["filled"], told["intervals"]) == (30, 96)
    lines = [str(each) for each in screen([replace(found, filled=30, intervals=96)])]
    assert any("30 of the 96 intervals of" in each for each in lines)
    assert not any("intervals" in str(each) for each in screen([found]))


def test_the_command_prints_json_and_a_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The keys are stable."""
    series = trace(tmp_path / "made-up.csv", days(4))
    text = CLUSTER + job_text("a", 0, 9, 3) + job_text("b", 1, 14, 3, "pause = false\n")
    words = ["policy", "bench", "--jobs", str(written(tmp_path, text)), "--trace", str(series)]
    assert main([*words, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["streams"]
    assert set(told) >= {"stream", "trace", "bound_g", "peer", "rows", "share_of_bound_gain"}
    assert set(told["rows"][0]) >= {"policy", "carbon_g", "missed", "lost", "cap_exceeded_s"}
    assert main(words) == 0
    screen = capsys.readouterr().out
    assert "replayed, not measured" in screen
    assert "joint-ahead" in screen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--catalogue FILE for one job"),
        (["--jobs", "x.toml", "--catalogue", "y.toml"], "--catalogue FILE for one job"),
        (["--jobs", "x.toml", "--slack", "1.5", "--regret"], "--slack, --regret: not with --jobs"),
        (["--jobs", "nowhere.toml"], "cannot be read"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """In one sentence that says what to give."""
    series = trace(tmp_path / "made-up.csv", days(2))
    assert main(["policy", "bench", "--trace", str(series), *words]) != 0
    assert said in capsys.readouterr().err


ONE = job_text("a", 0, 9, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cluster"),
        (CLUSTER, "job"),
        (CLUSTER + ONE + ONE, "two jobs are named a"),
        (CLUSTER + job_text("a", 9, 9, 3), "must be after arrival_h"),
        (CLUSTER + job_text("a", 0, 9, 0), "hours"),
        (CLUSTER + job_text("a", 0, 1e300, 3), "longer than a year|beyond any"),
        (CLUSTER + job_text("a", 0, 9, 3, 'submitted = "Z"\n'), "'Z' is not one of"),
        (CLUSTER + job_text("a", 0, 9, 3, 'pause = "no"\n'), "true or false"),
        (CLUSTER + job_text("a", 0, 9, 3, "luck = 1\n"), "luck"),
        (CLUSTER + job_text("a\\u001b[31m", 0, 9, 3), "name"),
        (CLUSTER + ONE.replace(str(CATALOGUE), "nowhere.toml"), "cannot be read"),
        (CLUSTER + "[[cap]]\nfrom_h = 5\nuntil_h = 4\nwatts = 1\n" + ONE, "after from_h"),
        (CLUSTER.replace("64", "-3") + ONE, "gpus"),
        (CLUSTER.replace("idle_power_w_per_gpu = 100\n", "") + ONE, "is missing"),
        (CLUSTER + "slot_s = 1\n" + ONE, "slot_s"),
        ("cluster = 3\n" + ONE, "must be a table"),
        ("[cluster\n", "not TOML"),
    ],
)
def test_a_file_with_mistakes_is_refused_with_its_keys(
    tmp_path: Path, text: str, said: str
) -> None:
    """Each mistake by its key, or why the file cannot be read."""
    with pytest.raises(FixInput, match=said):
        stream_file.load(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CLUSTER + job_text("a", 0, 500, 3), "give a longer trace"),
        (CLUSTER + job_text("a", 0, 20, 300), "not done by the end"),
        (CLUSTER.replace("64", "8") + ONE, "fits on 8 GPUs"),
        (CLUSTER.replace("60000", "6000") + ONE, "idle GPUs draw"),
        (CLUSTER.replace("60000", "7000") + ONE, "not done by the end"),
        (CLUSTER + "slot_s = 120\n" + ONE, "longer than a slot"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_with_its_numbers(
    tmp_path: Path, text: str, said: str
) -> None:
    """Too long for the trace, too large for the cluster, or a cap that no point is below."""
    stream = stream_file.load(written(tmp_path, text))
    with pytest.raises(FixInput, match=said):
        bench_stream(stream, days(4))


@pytest.mark.parametrize(("cap_w", "looks"), [(7000, 8), (60000, 2)])
def test_a_job_that_is_never_done_costs_few_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cap_w: int, looks: int
) -> None:
    """A look for each day of a year's trace took minutes. Twin: one that is done takes one more."""
    looked: list[int] = []

    def counted(*asked: Any) -> Any:
        looked.append(1)
        return first_come(*asked)

    monkeypatch.setattr(stream_bench, "first_come", counted)
    text = CLUSTER.replace("60000", str(cap_w)) + job_text("a", 0, 9, 3)
    stream = stream_file.load(written(tmp_path, text))
    if cap_w == 7000:
        with pytest.raises(FixInput, match="not done by the end"):
            bench_stream(stream, days(100))
    else:
        bench_stream(stream, days(100))
    assert len(looked) <= looks


def test_a_job_whose_deadline_nobody_can_meet_is_done_late(tmp_path: Path) -> None:
    """It is told so, under every rule, and costs no other its deadline."""
    text = CLUSTER + job_text("a", 0, 20, 5) + job_text("late", 0.5, 1.2, 5)
    result = bench_stream(stream_file.load(written(tmp_path, text)), days(4))
    for row in result.rows:
        assert "late" in row.missed
        assert row.lost == ()
        assert all(each.done_h is not None for each in row.jobs)


def test_the_example_is_a_stream() -> None:
    """As the page shows it, it can be read, catalogues included."""
    found = stream_file.load(EXAMPLES / "streams" / "fortnight.toml")
    assert len(found.jobs) == 10
    assert found.caps[0].until_s - found.caps[0].from_s == timedelta(hours=4).total_seconds()
