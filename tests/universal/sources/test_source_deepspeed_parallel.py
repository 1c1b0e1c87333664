"""DeepSpeed's pipeline modules, tensor and expert parallelism, read bit for bit or refused."""

import re
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.universal.comparing import (
    SPOILT,
    Held,
    damaged,
    differences_are_seen,
    differing,
    same_index,
)
from tests.universal.deepspeed_runs import PARALLEL, Parallel, Trained
from tests.universal.sources.deepspeed_spoilt import (
    MISPLACED,
    SPOILT_FILES,
    STRANGE,
    UNWRITTEN,
    expert,
    layer,
    model,
    one_bit,
    spoil,
    spoil_all,
)
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.index.declared import Declared, Rename
from wattmesh.reconfig.universal.index.rules import Replicate, Rule, Shard, SubBlocks, VocabPad
from wattmesh.reconfig.universal.sources.deepspeed.deepspeed import open_deepspeed
from wattmesh.reconfig.universal.sources.deepspeed.tensor_rules import UniversalInfo, read_info
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.sources.source import Source

NOTHING = Declared()
RUN = {run.name: run for run in PARALLEL}
READ = [run for run in PARALLEL if not run.apart]

SLICED = {"inner": 0, "shift": 0, "back": 1, "up.weight": 0, "up.bias": 0, "fused.weight": 0,
          "down.weight": 1, "mix.weight": 1}  # fmt: skip
"""Dims along which a name's end is sliced; the others are copies."""

FUSED = [*range(6), *range(12, 18), 6, 7, 18, 19, *range(8, 12), *range(20, 24)]
"""Rows of the fused blocks 12, 4 and 8 in two slices one after the other."""


EXPERTS = "layers.0.deepspeed_moe.experts.deepspeed_experts"


def rules(*pairs: tuple[str, Rule]) -> Declared:
    """Declared layout rules."""
    return Declared(rules=tuple((re.compile(match), rule) for match, rule in pairs))


ALL = rules((r"\.(inner|shift)$", Shard(0)), (r"\.back$", Shard(1)), ("", Replicate()))
UNTOLD = rules((r"seen|counts|frozen", Replicate()))
DECLARED = {"pipe-tensor": ALL, "split": UNTOLD}


def opened(trained: Trained, run: Parallel) -> Source:
    """Open a run as its user does."""
    declared = DECLARED.get(run.name, NOTHING)
    return open_deepspeed(trained.folder / run.name / "step2", declared)


def truth(trained: Trained, run: Parallel) -> Held:
    """What the ranks of a run held, whole; copies were equal on all of them."""
    found: dict[tuple[str, str], torch.Tensor] = {}
    ranks = trained.held_by(run)
    for first in range(0, run.model, run.tensor):
        for key in ranks[first]:
            parts = [held[key] for held in ranks[first : first + run.tensor]]
            dim = next((SLICED[end] for end in SLICED if key[0].endswith(end)), None)
            if run.tensor > 1 and dim is not None and parts[0].dim() and is_sliced(run, key[0]):
                joined = torch.cat(parts, dim)
                parts = [joined[FUSED] if key[0] == "fused.weight" else joined]
            assert all(torch.equal(part, parts[0]) for part in parts), key
            assert torch.equal(found.setdefault(key, parts[0]), parts[0]), key
    return found


def is_sliced(run: Parallel, name: str) -> bool:
    """Whether a run's ranks hold slices of it: DeepSpeed split `Net`'s, the model its own."""
    return run.auto or name.rpartition(".")[2] in ("inner", "shift", "back")


@pytest.mark.parametrize("run", READ, ids=lambda run: run.name)
def test_every_tensor_is_what_the_ranks_held(deepspeed_runs: Trained, run: Parallel) -> None:
    """Every (tensor, state) equals, bit for bit, what the training ranks held in memory."""
    source, held = opened(deepspeed_runs, run), truth(deepspeed_runs, run)
    assert differing(source.index, source.folder, held) == []
    assert len({state for _, state in held}) == 4
    assert source.described == run.described
    assert source.index.tied == ({"1.two.weight": "1.one.weight"} if run.stages else {})
    assert source.values["other"]["note"] == {"tokens": [5]}
    assert source.values["left_out"] == (["layer 3"] if run.stages else [])
    assert source.values["param_groups"].keys() == {n for n, state in held if state == "exp_avg"}
    assert source.position["step"] == 2
    assert set(source.index.files) <= set(source.files)


@pytest.mark.parametrize("how", list(SPOILT))
@pytest.mark.parametrize("name", ["pipe", "auto", "experts"])
def test_differences_are_seen(deepspeed_runs: Trained, name: str, how: str) -> None:
    """Negative controls: the comparison names exactly the tensor that was spoilt."""
    run = RUN[name]
    weight = {
        "pipe": "tied_modules.embed.weight", "auto": "fused.weight",
        "experts": f"{EXPERTS}.2.up.weight"
    }[name]  # fmt: skip
    keys = [(weight, "param"), (weight, "exp_avg")]
    differences_are_seen(opened(deepspeed_runs, run), truth(deepspeed_runs, run), keys, how)


def test_renames_hold_for_stages_and_layers(deepspeed_runs: Trained) -> None:
    """Logical names are the user's, those of shared modules and of frozen layers, too."""
    renames = (
        Rename(re.compile(r"^tied_modules\.embed\."), "embed."),
        Rename(re.compile(r"^(\d+)\."), "layers.{0}.", add=10),
    )
    folder = deepspeed_runs.folder / "pipe" / "step2"
    index = open_deepspeed(folder, Declared(renames=renames)).index
    assert {("embed.weight", "exp_avg"), ("layers.16.factor", "param")} <= set(index.rows)
    assert index.tied == {"layers.11.two.weight": "layers.11.one.weight"}


def test_declared_rules_rearrange_what_was_joined(deepspeed_runs: Trained) -> None:
    """Rules hold for a parameter and all of its slots, of a shared layer, too."""
    embed = "tied_modules.embed.weight"
    blocks = SubBlocks(0, ((1, 1), (1, 3)))
    declared = rules((embed, VocabPad(0, 20)), (r"^5\.weight", blocks))
    source = open_deepspeed(deepspeed_runs.folder / "pipe" / "step2", declared)
    expected = dict(truth(deepspeed_runs, RUN["pipe"]))
    for key, tensor in expected.items():
        if key[0] == "5.weight" and tensor.dim():
            expected[key] = tensor[[0, 2, 1, 3, 4, 5]]
        if key[0] == embed and tensor.dim():
            expected[key] = tensor[:20]
    assert differing(source.index, source.folder, expected) == []


def test_what_deepspeed_does_not_keep_equal_is_refused(deepspeed_runs: Trained) -> None:
    """A shared layer's bias is another parameter on each stage, under one name."""
    with pytest.raises(InputInvalid, match=r"tied_modules.scale.bias .*tied_weight_attr"):
        opened(deepspeed_runs, RUN["pipe-apart"])


@pytest.mark.parametrize(
    ("name", "declared", "words"),
    [
        ("pipe-tensor", NOTHING, "nothing in the files says whether as copies or as slices"),
        ("split", NOTHING, "split.frozen: .*nothing in the files says|seen: .*nothing"),
        ("pipe-tensor", rules(("", Replicate())), r"inner .param.*hold different values"),
        ("pipe-tensor", rules(("", Shard(1))), "shift: dim 1 of its rule|bias|weight: dim 1"),
        (
            "pipe-tensor",
            rules((r"back$|inner$|shift$", Shard(0)), ("", Replicate())),
            "no slices along dim 0",
        ),
        ("pipe", rules(("nothing", Replicate())), "matches no tensor of the source"),
        ("auto", rules(("up.weight", Replicate())), "hold different values"),
        ("auto", rules(("up.weight", Shard(1))), "maps it to shape .10, 6."),
    ],
)
def test_wrong_or_missing_rules_are_refused(
    deepspeed_runs: Trained, name: str, declared: Declared, words: str
) -> None:
    """Nothing is guessed of how ranks hold a tensor, and a rule that does not fit is noticed."""
    with pytest.raises(InputInvalid, match=words):
        open_deepspeed(deepspeed_runs.folder / name / "step2", declared)


def copied(trained: Trained, name: str, folder: Path) -> Path:
    """A copy of a run's checkpoint."""
    shutil.copytree(trained.folder / name / "step2", folder)
    return folder


@pytest.mark.parametrize("how", list(SPOILT_FILES))
def test_files_that_do_not_belong_together(
    deepspeed_runs: Trained, tmp_path: Path, how: str
) -> None:
    """Spoilt twins: each is refused by a sentence that names what does not fit."""
    name, change, words = SPOILT_FILES[how]
    folder = copied(deepspeed_runs, name, tmp_path / "it")
    change(folder)
    with pytest.raises((InputInvalid, CheckpointDamaged), match=words):
        open_deepspeed(folder, DECLARED.get(name, NOTHING))


UNNAMED = {layer(number): number for number in (0, 2, 6, 8)}
"""Layers of which DeepSpeed names nothing by number: shared ones, and one that is only frozen."""


@pytest.mark.parametrize("name", ["pipe", "pipe-tensor", "auto", "experts"])
def test_lost_files_are_named(deepspeed_runs: Trained, tmp_path: Path, name: str) -> None:
    """A lost file is refused by its name, or told where DeepSpeed does not name its layer."""
    folder = copied(deepspeed_runs, name, tmp_path / "it")
    for file in sorted(path.name for path in folder.glob("*.pt")):
        (folder / file).rename(tmp_path / file)
        if name == "pipe" and file in UNNAMED:
            source = open_deepspeed(folder, NOTHING)
            lost = {UNNAMED[file], 3} - {8}
            assert source.values["left_out"] == [f"layer {each}" for each in sorted(lost)]
            gone = [("6.factor", "param")] if file == layer(6) else []
            assert differing(source.index, folder, truth(deepspeed_runs, RUN[name])) == gone
        else:
            with pytest.raises(CheckpointDamaged):
                open_deepspeed(folder, DECLARED.get(name, NOTHING))
        (tmp_path / file).rename(folder / file)
    for path in [*folder.glob("zero_*mp_rank_01*"), *folder.glob("layer_*")]:
        path.unlink()
    with pytest.raises(CheckpointDamaged):
        open_deepspeed(folder, NOTHING)


def test_a_tie_of_a_later_stage_is_declared(deepspeed_runs: Trained, tmp_path: Path) -> None:
    """DeepSpeed says ties within a layer on its first stage only; else the user does."""
    folder = copied(deepspeed_runs, "pipe", tmp_path / "it")
    spoil(folder, "mp_rank_00_model_states.pt", lambda it: it.update(shared_params={}))
    declared = Declared(tied={"1.two.weight": "1.one.weight"})
    source = open_deepspeed(folder, declared)
    held = truth(deepspeed_runs, RUN["pipe"])
    assert differing(source.index, folder, held) == []
    assert source.index.tied == {"1.two.weight": "1.one.weight"}
    renames = (Rename(re.compile(r"^1\."), "first."),)
    ties = {"first.two.weight": "first.one.weight"}
    assert open_deepspeed(folder, Declared(renames=renames, tied=ties)).index.tied == ties
    with pytest.raises(InputInvalid, match=r"4.bias is declared to be tied .* of its own"):
        open_deepspeed(folder, Declared(tied={**declared.tied, "4.bias": "7.bias"}))
    with pytest.raises(InputInvalid, match=r"1.two.weight is tied to 5.weight, but differs"):
        open_deepspeed(folder, Declared(tied={"1.two.weight": "5.weight"}))


def test_what_is_not_read_is_named(deepspeed_runs: Trained, tmp_path: Path) -> None:
    """Plain values are the first rank's; others' are named, as is a buffer that no file holds."""
    folder = copied(deepspeed_runs, "pipe-tensor", tmp_path / "it")
    spoil_all(folder, [model(0), model(1)], lambda it: it.update(rng=[0], same=[1]))
    spoil_all(folder, [model(2), model(3)], lambda it: it.update(rng=[1], same=[1]))
    spoil(folder, layer(5, 1), lambda it: it.update(_extra_state=[5]))
    lost = "tied_modules.embed.lost"
    spoil(folder, model(0), lambda it: it["buffer_names"].append(lost))
    values = open_deepspeed(folder, ALL).values
    assert values["other"]["rng"] == [0]
    assert values["left_out"] == [
        "module.5._extra_state of model-parallel rank 1",
        "rng of model-parallel rank 2",
        "rng of model-parallel rank 3",
        lost,
        "layer 3",
    ]


def test_masters_that_are_no_float32(deepspeed_runs: Trained, tmp_path: Path) -> None:
    """Masters of the working copies' own dtype are compared with these bit for bit."""
    folder = copied(deepspeed_runs, "pipe-bf16", tmp_path / "it")

    def narrow(it: dict[str, Any]) -> None:
        held = it["optimizer_state_dict"]["single_partition_of_fp32_groups"]
        held[:] = [each.data.bfloat16() for each in held]

    spoil_all(folder, [path.name for path in folder.glob("bf16_*")], narrow)
    index = open_deepspeed(folder, NOTHING).index
    expected = {
        key: tensor.bfloat16() if key[1] == "param" and (key[0], "step") in index.rows else tensor
        for key, tensor in truth(deepspeed_runs, RUN["pipe-bf16"]).items()
    }
    assert differing(index, folder, expected) == []
    spoil(folder, layer(5), lambda it: one_bit(it, "weight"))
    with pytest.raises(InputInvalid, match=r"5.weight is not the cast"):
        open_deepspeed(folder, NOTHING)


def test_masters_that_are_no_numbers(deepspeed_runs: Trained, tmp_path: Path) -> None:
    """The cast of a NaN is any NaN, and no number."""
    folder = copied(deepspeed_runs, "pipe-bf16", tmp_path / "it")

    def to_nan(it: dict[str, Any]) -> None:
        held = it["optimizer_state_dict"]
        for name, at in held["param_slice_mappings"][0].items():
            if name == "5.bias":
                (master,) = held["single_partition_of_fp32_groups"]
                master.data[at.start : at.start + at.numel] = torch.nan

    spoil_all(folder, [path.name for path in folder.glob("bf16_*")], to_nan)
    spoil(folder, layer(5), lambda it: it["bias"].view(torch.int16).fill_(0x7F81))
    assert ("5.bias", "param") in open_deepspeed(folder, NOTHING).index.rows
    spoil(folder, layer(5), lambda it: it["bias"].view(torch.int16).fill_(0x7F80))
    with pytest.raises(InputInvalid, match=r"5.bias is not the cast"):
        open_deepspeed(folder, NOTHING)


def test_working_copies_in_another_order_of_elements(
    deepspeed_runs: Trained, tmp_path: Path
) -> None:
    """A copy that is saved transposed is compared like any other."""
    folder = copied(deepspeed_runs, "experts", tmp_path / "it")

    def turn(it: dict[str, Any]) -> None:
        it.update({key: value.T.contiguous().T for key, value in it.items() if value.dim() == 2})

    spoil(folder, expert(0, 2), turn)
    index = open_deepspeed(folder, NOTHING).index
    assert differing(index, folder, truth(deepspeed_runs, RUN["experts"])) == []
    key = f"{EXPERTS}.2.up.weight"
    spoil(folder, expert(0, 2), lambda it: it[key].T.view(torch.uint8).__setitem__((0, 0), 77))
    with pytest.raises(InputInvalid, match="not the casts"):
        open_deepspeed(folder, NOTHING)


@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files(deepspeed_runs: Trained, tmp_path: Path, data: st.DataObject) -> None:
    """A flipped or missing byte is refused, or changes nothing but the bytes of a tensor."""
    name = data.draw(st.sampled_from(["pipe", "pipe-tensor", "auto", "experts"]))
    declared = DECLARED.get(name, NOTHING)
    whole = deepspeed_runs.folder / name / "step2"
    expected = open_deepspeed(whole, declared)
    names = sorted(expected.files)
    file, found = damaged(
        data, whole, tmp_path / name, names, lambda at: open_deepspeed(at, declared)
    )
    shutil.copy(whole / file, tmp_path / name / file)
    assert found is None or same_index(found, expected)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value inside dicts and lists."""
    inner = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else inner
    return [at, *(path for key, each in pairs for path in paths(each, (*at, key)))]


def info_of(trained: Trained) -> dict[str, Any]:
    """What AutoTP says of its own run, as a model file would hold it."""
    file = trained.folder / "auto" / "step2" / "mp_rank_00_model_states.pt"
    key = "universal_checkpoint_info"
    return {key: torch.load(file, weights_only=False)[key]}


@pytest.mark.parametrize("how", list(UNWRITTEN))
def test_info_that_autotp_does_not_write(deepspeed_runs: Trained, how: str) -> None:
    """A weight without a map, or one that cannot be joined, and another version are refused."""
    change, words = UNWRITTEN[how]
    model = info_of(deepspeed_runs)
    change(model["universal_checkpoint_info"])
    with pytest.raises(InputInvalid, match=words):
        cast(UniversalInfo, read_info(model, "it", Allowance())).rule("fused.weight")


@pytest.mark.parametrize("how", list(MISPLACED))
def test_a_map_that_says_otherwise_is_refused(deepspeed_runs: Trained, how: str) -> None:
    """AutoTP's lists and its maps must say the same of every element."""
    parts = [(12, 6), (12, 6)]
    for change, fits in ((lambda it: None, True), (MISPLACED[how], False)):
        model = info_of(deepspeed_runs)
        change(model["universal_checkpoint_info"]["affine_map"]["params"][r"^fused\.weight$"])
        info = read_info(model, "it", Allowance())
        assert info is not None
        rule = info.rule("fused.weight").rule
        if fits:
            info.check("fused.weight", rule, (24, 6), parts)
        else:
            with pytest.raises(InputInvalid, match="other places"):
                info.check("fused.weight", rule, (24, 6), parts)


def test_a_bias_that_autotp_divided_is_refused(deepspeed_runs: Trained) -> None:
    """It is held multiplied by a number, so its bits are not the parameter's."""
    model = info_of(deepspeed_runs)
    maps = model["universal_checkpoint_info"]["affine_map"]["params"]
    maps[r"^norm\.bias$"]["ranks"][0]["pieces"][0]["scale"] = 0.5
    with pytest.raises(InputInvalid, match=r"multiplied by 0.5"):
        read_info(model, "it", Allowance())


def test_without_zero_is_refused(deepspeed_runs: Trained, tmp_path: Path) -> None:
    """DeepSpeed's optimizer without ZeRO knows parameters by number only."""
    folder = copied(deepspeed_runs, "pipe", tmp_path / "it")
    for path in folder.glob("zero_*"):
        path.unlink()
    with pytest.raises(InputInvalid, match="without ZeRO"):
        open_source(folder)
    (tmp_path / "latest").write_text("it")
    with pytest.raises(InputInvalid, match="without ZeRO"):
        open_source(tmp_path)


@given(data=st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_strange_info(deepspeed_runs: Trained, data: st.DataObject) -> None:
    """Any value in the place of any other in DeepSpeed's info is refused or read, and never run."""
    model = info_of(deepspeed_runs)
    path = data.draw(st.sampled_from([each for each in paths(model) if each]))
    holder: Any = model
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = data.draw(st.sampled_from(STRANGE))
    try:
        info = read_info(model, "it", Allowance())
        if info is not None:
            said = info.rule("fused.weight")
            info.check("fused.weight", said.rule, (24, 6), [(12, 6), (12, 6)])
    except InputInvalid:
        pass


def test_declared_rules_stand_for_an_info_that_is_not_understood(
    deepspeed_runs: Trained, tmp_path: Path
) -> None:
    """Without them the first parameter is refused; with them the info is not asked."""
    run = RUN["split"]
    folder = copied(deepspeed_runs, run.name, tmp_path / "it")
    spoil_all(
        folder,
        ["mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"],
        lambda it: it["universal_checkpoint_info"].update(
            tp_replicated_parameter_patterns=["(a+)+$"]
        ),
    )
    with pytest.raises(InputInvalid, match=r"embed.weight: .*not understood"):
        open_deepspeed(folder, UNTOLD)
    source = open_deepspeed(folder, ALL)
    assert differing(source.index, folder, truth(deepspeed_runs, run)) == []
