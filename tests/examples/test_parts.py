"""The parts of the example that need no process group: data, rules, pace, command line."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.pretrain import pace
from examples.pretrain.config import check_layout, micro_batch, preset
from examples.pretrain.data import Corpus, standard_library
from examples.pretrain.model import LanguageModel
from examples.pretrain.options import parse_layout, parse_options
from examples.pretrain.pace import (
    STALE_S,
    SWITCH_S,
    Timetable,
    choose_pace,
    efficiency,
    tokens_per_s,
)
from examples.pretrain.parallel import draw, make_stage, narrow_experts
from wattmesh.controller.process.children import wait_for
from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.expert_bottleneck import NarrowMap
from wattmesh.reconfig.layout import Layout
from wattmesh.telemetry.fake_nvml import DEMO_BOARD, FOLDER_VARIABLE, FakeNvml

TINY = preset("tiny")
CORPUS = Corpus.open(1 << 16, 16, seed=3)


@given(first=st.integers(0, 1 << 60), count=st.integers(1, 6))
def test_a_sample_is_the_same_wherever_it_is_read(first: int, count: int) -> None:
    """A batch equals its samples read one by one: position alone decides, not the grouping."""
    inputs, targets = CORPUS.batch(first, count)
    assert inputs.shape == targets.shape == (count, 16)
    for index in range(count):
        one, _ = CORPUS.batch(first + index, 1)
        assert torch.equal(one[0], inputs[index])
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_another_seed_reads_other_samples() -> None:
    """The seed chooses the order of the text."""
    starts = [CORPUS.start(i) for i in range(50)]
    assert starts != [Corpus.open(1 << 16, 16, seed=4).start(i) for i in range(50)]
    assert len(set(starts)) > 40


def test_the_text_is_real_and_has_a_fixed_size() -> None:
    """The corpus is Python source; asking for more than there is names both sizes."""
    text = standard_library(1 << 16)
    assert len(text) == 1 << 16
    assert b"import" in text
    with pytest.raises(InputInvalid, match="are needed"):
        standard_library(1 << 40)


def test_stages_hold_the_parameters_of_the_whole_under_global_names() -> None:
    """Over all stages every parameter is there once, drawn from the seed alike."""
    whole = dict(_drawn(0, 1).named_parameters())
    found: dict[str, torch.Tensor] = {}
    for stage in range(4):
        for name, parameter in _drawn(stage, 4).named_parameters():
            assert name not in found
            found[name] = parameter
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


def _drawn(stage: int, stages: int) -> LanguageModel:
    """Make a stage with its first values."""
    module = make_stage(TINY, stage, stages).to_empty(device="cpu")
    draw(module, TINY)
    return module


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (
            Layout(cp=8),
            "seq_len = 32 is not divisible by ttt_chunk \\* pieces = 64",
        ),
        (Layout(cp=2, cp_layers="1x4"), "layer 0 over 1 of cp = 2 ranks, but a test-time"),
    ],
)
def test_a_chunk_of_test_time_training_is_never_cut(layout: Layout, words: str) -> None:
    """Nor does its state go over a part of the context group; where it fits, it is accepted."""
    with pytest.raises(InputInvalid, match=words):
        check_layout(preset("tiny-ttt"), layout)
    check_layout(preset("tiny-ttt"), Layout(cp=2, cp_layers="2 1 2 1"))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(tp=4), "kv_heads = 2 is not divisible by tp = 4"),
        (Layout(pp=3), "layers = 4 is not divisible by pp = 3"),
        (Layout(dp_shard=3), "global_batch = 8 is not divisible by"),
        (Layout(dp_replicate=4, dp_shard=4), "dp_replicate \\* dp_shard = 16"),
        (Layout(cp=3), "seq_len = 16 is not divisible by 2 \\* cp = 6"),
        (Layout(tp=2, ep=2), "no experts; leave ep at 1"),
        (Layout(pp=4, schedule="ZBVZeroBubble"), "2 stages on each of pp = 4 ranks, stages = 8"),
        (Layout(micro_batch=3), "is not divisible by micro_batch = 3"),
        (Layout(pp=2, micro_batch=8), "cannot fill pp = 2 stages"),
        (Layout(cp=8, cp_method="ulysses"), "4 query heads of a tp rank cannot be dealt"),
        (Layout(cp=2, cp_layers="1 2"), "cp_layers = '1 2' names 2 layers of 4"),
        (Layout(cp=4, cp_layers="1x4", micro_batch=2), "micro_batch = 2 is not divisible by cp /"),
        (Layout(ep_bottleneck=4), "ep_bottleneck = 4 needs maps .* this model's are for none"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_with_its_numbers(layout: Layout, words: str) -> None:
    """Each rule names itself before any process group exists."""
    with pytest.raises(InputInvalid, match=words):
        check_layout(TINY, layout)


def test_rows_are_narrow_as_the_layout_says_and_maps_learn_from_a_mean() -> None:
    """By every map of every layer; a bottleneck that the maps are not for is refused."""
    config = preset("tiny-narrow")
    with pytest.raises(InputInvalid, match="this model's are for 4"):
        check_layout(config, Layout(ep_bottleneck=2))
    stage = make_stage(config, 0, 1)
    for narrow in (4, 1):
        narrow_experts(stage, config, Layout(ep_bottleneck=narrow))
        maps = [each for each in stage.modules() if isinstance(each, NarrowMap)]
        assert len(maps) == 2 * config.model.layers
        assert {(each.narrow, each.tokens) for each in maps} == {
            (narrow > 1, config.tokens_per_step)
        }


def test_maps_wider_than_the_model_are_refused() -> None:
    """They would have no features, which torch says of an empty tensor far from here."""
    config = preset("tiny-narrow")
    nothing = replace(config, model=replace(config.model, bottleneck=128))
    with pytest.raises(InputInvalid, match="bottleneck = 128 leaves none of 64 features"):
        check_layout(nothing, Layout())


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
def test_the_trainers_own_microbatches_always_fit(pp: int, dp: int) -> None:
    """Without a choice in the layout the microbatches divide the share and fill the stages."""
    layout = Layout(pp=pp, dp_shard=dp)
    share = TINY.global_batch // dp
    size = micro_batch(TINY, layout)
    assert share % size == 0
    if share >= pp:
        check_layout(TINY, layout)


def test_unknown_presets_and_dtypes_are_refused() -> None:
    """The message lists what there is."""
    for name, dtype in (("huge", "fp32"), ("tiny", "fp8")):
        with pytest.raises(InputInvalid, match="demo, tiny"):
            preset(name, dtype=dtype)


def test_a_layout_is_read_from_the_command_line() -> None:
    """`dp_shard=2,tp=2` is a layout; anything else is explained."""
    assert parse_layout("dp_shard=2,tp=2") == Layout(dp_shard=2, tp=2)
    assert parse_layout("") == Layout()
    assert parse_layout("pp=2,schedule=GPipe") == Layout(pp=2, schedule="GPipe")
    assert parse_layout("cp=2,cp_method=ring") == Layout(cp=2, cp_method="ring")
    assert parse_layout("cp=2,cp_layers=2") == Layout(cp=2, cp_layers="2")
    for wrong in ("tp", "tp=", "tp=0", "width=2", "tp=two", "tp=\N{SUPERSCRIPT TWO}", "tp=2,tp=4"):
        with pytest.raises(InputInvalid):
            parse_layout(wrong)


def test_a_bad_command_line_ends_with_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Misuse is status 2 with the rule on stderr, before torch does anything."""
    with pytest.raises(SystemExit) as caught:
        parse_options(["--layout", "tp=4"])
    assert caught.value.code == 2
    assert "kv_heads" in capsys.readouterr().err


def test_larger_layouts_are_faster_but_less_efficient() -> None:
    """The assumed speed model has the shape that makes moving between layouts worthwhile."""
    large, small = Layout(dp_shard=2, tp=2), Layout(tp=2)
    assert tokens_per_s(large) > tokens_per_s(small)
    assert efficiency(large) < efficiency(small) < efficiency(Layout()) == 1
    assert tokens_per_s(Layout()) == pytest.approx(pace.TOKENS_PER_S_PER_GPU)
    assert tokens_per_s(large, 0.5) < tokens_per_s(large)


def test_a_late_step_is_caught_up_with_and_a_switch_takes_its_time() -> None:
    """The timetable goes on whatever the machine does; a rank that was away begins anew."""
    table, large, small = Timetable(), Layout(dp_shard=2, tp=2), Layout(tp=2)
    assert table.next(large, 0.5, now_s=100.0) == 100.5
    assert table.next(large, 0.5, now_s=101.7) == 101.0  # a checkpoint took 1.2 s: late by 0.7
    assert table.next(large, 0.5, now_s=101.8) == 101.5  # its next step is nearer
    assert table.next(small, 0.9, now_s=101.6) == 101.5 + SWITCH_S + 0.9
    assert table.next(large, 0.5, now_s=110.0) == 110.5  # the switch really took longer
    assert table.next(large, 0.5, now_s=110.5 + STALE_S + 1) == 122.0
    assert Timetable(due_s=100.0).next(large, 0.5, now_s=101.0) == 100.5  # joined a second late


def test_a_paced_step_takes_the_simulated_devices_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank's own board is at work from step to step, and idle when nothing follows."""
    gpu = FakeNvml.create(tmp_path / "gpus", 2, DEMO_BOARD, update_ms=0).gpu(1)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "gpus"))
    chosen = choose_pace(1, tokens_per_step=40)
    assert chosen.gpu_uuid == gpu.uuid
    with chosen.step(Layout(tp=2), leads=True) as work:
        assert gpu.truth().power_w == 700
    assert work.elapsed_s >= 40 / tokens_per_s(Layout(tp=2)) > work.computed_s
    assert gpu.truth().power_w == 700  # the checkpoint behind it is work too
    chosen.end()
    wait_for(lambda: gpu.truth().power_w == 55, limit_s=20, what="the board's rest")
    with chosen.step(Layout(tp=2), leads=False) as work:
        pass
    assert work.overrun_s == 0


def test_without_simulated_devices_steps_take_what_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No folder, no pace, no device to report."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    chosen = choose_pace(0, tokens_per_step=10**9)
    with chosen.step(Layout(), leads=True) as work:
        pass
    chosen.end()
    assert chosen.gpu_uuid == ""
    assert 0 <= work.elapsed_s < 5
