"""The benchmark of the cost model: what is scored was not seen, and figures are right."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost_model.__main__ import measure, memory_row, rankings, same_software
from benchmarks.cost_model.folds import (
    CLUSTER,
    FOLDS,
    GROUP,
    MAIN,
    SINGLE_NODE,
    Runs,
    Scored,
    cross_validate,
    folds,
    load,
    numbered,
    percent,
)
from benchmarks.cost_model.peer import beside, case, expressible
from tests.parallelism.rows import RIGHT, Row, read, row
from wattmesh.controller.cost_model import fitted

MORE = {"step_time_s": "", "tokens_per_s_per_gpu": "", "mem_gib": "", "energy_j_per_token": ""}


def write(folder: Path, name: str, rows: list[Row]) -> None:
    """Write a table of runs."""
    with (folder / name).open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, [*RIGHT, *MORE])
        writer.writeheader()
        writer.writerows(rows)


def runs(folder: Path) -> Runs:
    """Give twelve runs of six models, two of each, and a table of one cluster."""
    rows = [
        row(
            **MORE
            | {
                "model": f"m{number % 6}",
                "vocab": 32000 + number % 6,
                "micro_batch": 1 + number // 6,
            }
        )
        | {"step_time_s": str(5 + number / 10), "row_id": str(number)}
        for number in range(12)
    ]
    rows += [row(**MORE | {"row_id": "no time"}), row(**MORE | {"step_time_s": "1", "layers": ""})]
    write(folder, MAIN, rows)
    write(folder, SINGLE_NODE, [row(**MORE | {"model": "other", "step_time_s": "6"})] * 24)
    return load(folder)


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    """With both names, and what to do."""
    with pytest.raises(
        SystemExit, match=r"no train_configs\.csv and no vtrain_single_node\.csv in"
    ):
        load(tmp_path)
    with pytest.raises(SystemExit, match="name their folder by --data"):
        load(tmp_path / "gone")


def test_runs_keep_their_text_beside_their_columns(tmp_path: Path) -> None:
    """Rows without a time, or without a layer, are left out; the others stay in order."""
    found = runs(tmp_path)
    assert len(found.main) == 14
    assert len(found.rows) == len(found.measured.seconds) == 36
    assert [each["row_id"] for each in found.rows[:12]] == [str(number) for number in range(12)]
    assert found.measured.seconds[:12].tolist() == [5 + number / 10 for number in range(12)]
    assert found.judged.tolist() == [True] * 12 + [False] * 24


def test_a_group_is_on_one_side_of_every_fold(tmp_path: Path) -> None:
    """Number formats of one class are one; each fold has something; shuffles differ."""
    rows = [row(precision=each, tp=tp) for tp in (1, 2, 4) for each in ("fp8", "mxfp8", "bf16")]
    groups = numbered(rows, GROUP)
    assert len(set(groups.tolist())) == 6
    assert groups[0] == groups[1] != groups[2]
    many = np.repeat(np.arange(50), 3)
    for seed in range(3):
        dealt = folds(many, seed)
        assert set(dealt.tolist()) == set(range(FOLDS))
        assert (dealt.reshape(50, 3) == dealt[::3, None]).all()
    assert (folds(many, 0) != folds(many, 1)).any()


def test_what_a_fold_left_out_teaches_it_nothing(tmp_path: Path) -> None:
    """A model's runs take half as long again as others: only a run of it can say that."""
    found = runs(tmp_path)
    start = fitted.shipped().parameters
    slow = np.array([each["model"] == "m3" for each in found.rows])
    found.measured.seconds[slow] *= 1.5
    clusters = numbered(found.rows, CLUSTER)
    scored = cross_validate(found, clusters, start, 1, give_back=True)
    assert sorted(scored.left_out.which.tolist()) == list(range(12))
    assert len(scored.one_given_back.which) == 12
    alone, given = (
        np.abs(each.error[slow[each.which]]) for each in (scored.left_out, scored.one_given_back)
    )
    assert alone.min() > 0.2
    assert given.max() < 0.9 * alone.min()


def test_errors_are_summed_up_in_percent() -> None:
    """Nothing is nothing, not zero."""
    found = percent(np.array([0.1, -0.1, 0.3, -0.1]))
    assert found == pytest.approx({"mape": 15.0, "median": 10.0, "p90": 24.0, "bias": 5.0})
    assert set(percent(np.array([])).values()) == {None}


def test_regret_is_what_the_choice_costs(tmp_path: Path) -> None:
    """The one that the physics finds fastest takes 20 % more; corrected, the right one is found."""
    found = runs(tmp_path)
    for each in found.rows[:3]:
        each.update({"model": "vtrain-x"})  # type: ignore[attr-defined] # rows are dictionaries
    found.measured.seconds[:3] = [6.0, 5.0, 10.0]
    zeros = np.zeros(3)
    scored = Scored(
        which=np.arange(3),
        error=zeros,
        physics=np.array([1.0, 2.0, 3.0]) / found.measured.seconds[:3] - 1,
        inside=zeros,
        j_per_token=zeros,
        given=np.full(3, -1),
        step_s=np.array([2.0, 1.0, 3.0]),
    )
    (told,) = rankings("by group", scored, found)
    assert told["configurations"] == 3
    assert told["top1_regret_percent"] == pytest.approx(20.0)
    assert told["median_regret_percent"] == pytest.approx(20.0)
    assert told["kendall_tau"] == pytest.approx(1 / 3)
    assert told["corrected_top1_regret_percent"] == pytest.approx(0.0)
    assert told["corrected_kendall_tau"] == pytest.approx(1.0)


def test_a_false_fit_is_counted(tmp_path: Path) -> None:
    """Predicted to fit an 80 GB GPU, measured above it; one that fits is none."""
    rows = [row(**MORE | {"mem_gib": each}) for each in ("90", "60", "1", "")]
    write(tmp_path, MAIN, rows)
    write(tmp_path, SINGLE_NODE, [row(**MORE | {"step_time_s": "1"})])
    told = memory_row(load(tmp_path))
    assert (told["runs"], told["of"], told["false_fits"]) == (3, 3, 1)
    assert told["predicted_below_measured"] == 2


def test_every_goal_of_the_issue_is_judged(tmp_path: Path) -> None:
    """From a small table on, through all of it; what could not be measured is not met."""
    runs(tmp_path)

    class Chosen:
        data, shuffles, worst = str(tmp_path), 1, 2

    report = measure(Chosen)  # type: ignore[arg-type] # three attributes are all it asks for
    by_name = {goal.name: goal for goal in report.goals}
    assert len(by_name) == 11
    assert by_name["mape_dense"].value is not None
    for name in ("mape_moe", "kendall_tau", "mape_energy", "mape_memory"):
        assert by_name[name].value is None
        assert not by_name[name].ok
    assert sum("worst" in each for each in report.rows) == 2


def peer(folder: Path, answer: str) -> Path:
    """Give an interpreter that answers every list of cases with one text."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\ncat > /dev/null\nprintf '%s' '{answer}'\n")
    program.chmod(0o755)
    return program


def scored_right(found: Runs) -> Scored:
    """Give predictions that are 10 % too long."""
    which = np.flatnonzero(found.judged)
    zeros = np.zeros(len(which))
    return Scored(
        which=which,
        error=zeros + 0.1,
        physics=zeros,
        inside=zeros,
        j_per_token=zeros,
        step_s=zeros,
        given=np.full(len(which), -1),
    )


def test_a_peer_that_is_absent_or_fails_is_told_and_stops_nothing(tmp_path: Path) -> None:
    """One row that says what to do, or its last words; nothing is made up for it."""
    found = runs(tmp_path)
    (told,) = beside(scored_right(found), found, tmp_path / "nowhere")
    assert told["not_run"] == "llm-analysis is not installed; `make peers` does it"
    (told,) = beside(scored_right(found), found, peer(tmp_path, "no JSON"))
    assert told["not_run"].startswith("llm-analysis failed")


def test_a_peer_is_scored_on_what_it_answers_and_so_are_we(tmp_path: Path) -> None:
    """Of twelve runs it refuses two; both are judged on the other ten."""
    found = runs(tmp_path)
    answers = [{"seconds": 2 * each, "took_s": 0.01} for each in found.measured.seconds[:10]]
    said = json.dumps([*answers, {"why": "no"}, {"why": "no"}])
    plain, half, ours = beside(scored_right(found), found, peer(tmp_path, said))
    for row_ in (plain, half):
        assert (row_["runs"], row_["of"]) == (10, 12)
        assert row_["mape"] == pytest.approx(100.0)
        assert row_["ms_each"] == pytest.approx(10.0)
    assert ours["runs"] == 10
    assert ours["mape"] == pytest.approx(10.0)


def test_a_peer_is_asked_only_what_it_has_words_for(tmp_path: Path) -> None:
    """Neither experts, 8 bits, context parallelism, interleaving nor adapters."""
    other = [
        row(experts=8, topk=2, moe_ffn=512),
        row(precision="fp8"),
        row(cp=2),
        row(vpp=2),
        row(notes="LoRA"),
    ]
    setups = read(row(), *other).setups
    assert expressible(setups).tolist() == [True, *[False] * 5]
    asked = case(setups, 0, 0.5)
    assert asked["layout"] == {"tp_size": 2, "pp_size": 2, "dp_size": 16, "sp_size": 2}
    assert asked["model"]["ffn_embed_dim"] == 14336
    assert asked["gpu"]["inter_node_bandwidth_in_GB_per_sec"] == 400


def test_runs_of_one_software_are_told_apart_from_others(tmp_path: Path) -> None:
    """A measured row of another release is left out of `same software`."""
    found = runs(tmp_path)
    tags = found.measured.rows.tags
    right = scored_right(found)
    assert len(same_software(replace(right, given=right.which[::-1].copy()), found).which) == 12
    tags_changed = (replace(tags[0], release_years=20.0), *tags[1:])
    rows = replace(found.measured.rows, tags=tags_changed)
    changed = replace(found, measured=replace(found.measured, rows=rows))
    chosen = same_software(replace(right, given=right.which[::-1].copy()), changed)
    assert sorted(chosen.which.tolist()) == list(range(1, 11))
