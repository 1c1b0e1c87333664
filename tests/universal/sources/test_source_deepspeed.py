"""Real DeepSpeed checkpoints read bit for bit; anything else is refused by one clear sentence."""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.universal.comparing import (
    SPOILT,
    damaged,
    differences_are_seen,
    differing,
    same_index,
)
from tests.universal.deepspeed_runs import RUNS, Run, Trained
from tests.universal.sources.deepspeed_spoilt import model, optim, spoil
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.index.declared import Declared, Rename
from wattmesh.reconfig.universal.index.rules import SubBlocks, VocabPad
from wattmesh.reconfig.universal.sources.deepspeed.deepspeed import open_deepspeed

NOTHING = Declared()


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_tensor_is_what_the_ranks_held(deepspeed_runs: Trained, run: Run) -> None:
    """Every (tensor, state) equals, bit for bit, what the training ranks gathered in memory."""
    source = open_deepspeed(deepspeed_runs.folder / run.name / "step2", NOTHING)
    held = deepspeed_runs.held(run.name)
    assert ("embed.weight", run.slots[0]) in held
    assert differing(source.index, source.folder, held) == []
    assert source.index.tied == {"head.weight": "embed.weight"}
    assert source.described == run.described
    assert set(source.index.files) <= set(source.files)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_values_that_are_no_tensors(deepspeed_runs: Trained, run: Run) -> None:
    """Settings come by parameter, the client's own state and the position beside them."""
    source = open_deepspeed(deepspeed_runs.folder / run.name / "step2", NOTHING)
    groups = source.values["param_groups"]
    if run.elastic:
        assert set(groups) == {name for name, state in deepspeed_runs.held(run.name)
                               if state == "exp_avg"}  # fmt: skip
        assert not any(groups.values())
    else:
        assert groups["embed.weight"]["weight_decay"] == 0.1
        assert (groups["norm.bias"]["weight_decay"], groups["norm.bias"]["lr"]) == (0.0, 0.02)
    assert "frozen" not in groups
    assert source.values["other"]["note"] == {"tokens": [5]}
    assert run.separate or source.values["other"]["loss_scaler"]["cur_scale"] == 1.0
    assert source.values["left_out"] == []
    assert source.position == {"step": 2, "samples": 4 * run.ranks}


@pytest.mark.parametrize("how", list(SPOILT))
@pytest.mark.parametrize("name", ["zero1", "zero3"])
def test_differences_are_seen(deepspeed_runs: Trained, name: str, how: str) -> None:
    """Negative controls: the comparison names exactly the tensor that was spoilt."""
    source = open_deepspeed(deepspeed_runs.folder / name / "step2", NOTHING)
    keys = [("inner.weight", "param"), ("inner.weight", "exp_avg")]
    differences_are_seen(source, deepspeed_runs.held(name), keys, how)


def test_parameters_without_slots_are_named(deepspeed_runs: Trained, tmp_path: Path) -> None:
    """Where a group has no state, its parameters are named on the screen and in the values."""
    folder = tmp_path / "it"
    shutil.copytree(deepspeed_runs.folder / "zero1" / "step2", folder)
    assert "without_slots" not in open_deepspeed(folder, NOTHING).values
    for path in folder.glob("*_optim_states.pt"):
        content = torch.load(path, weights_only=False)
        del content["optimizer_state_dict"]["base_optimizer_state"]["state"][0]
        torch.save(content, path)
    source = open_deepspeed(folder, NOTHING)
    without = source.values["without_slots"]
    assert "embed.weight" in without
    assert not {name for name, state in source.index.rows if state == "exp_avg"} & set(without)
    assert source.described.endswith(
        f"; {len(without)} of its parameters have no optimizer state, as {without[0]}"
    )


def test_what_would_be_lost_is_refused_by_its_name(deepspeed_runs: Trained, tmp_path: Path) -> None:
    """A sparse buffer, which has no plain elements; a learning rate that is a tensor."""
    folder = tmp_path / "it"
    shutil.copytree(deepspeed_runs.folder / "zero1" / "step2", folder)
    spoil(folder, model(0), lambda told: told["module"].update(counts=torch.eye(2).to_sparse()))
    with pytest.raises(InputInvalid, match=r"'counts' of the model is no plain tensor"):
        open_deepspeed(folder, NOTHING)
    spoil(folder, model(0), lambda told: told["module"].update(counts=torch.ones(7)))
    open_deepspeed(folder, NOTHING)
    for rank in range(2):
        spoil(folder, optim(rank, 0), rate_as_tensor)
    with pytest.raises(InputInvalid, match=r"the setting 'lr' of group 1 is no plain data"):
        open_deepspeed(folder, NOTHING)


def rate_as_tensor(content: Any) -> None:
    """What an optimizer with `lr=torch.tensor(...)` saves."""
    groups = content["optimizer_state_dict"]["base_optimizer_state"]["param_groups"]
    groups[1]["lr"] = torch.tensor(groups[1]["lr"])


def test_parameters_without_elements_have_slots(deepspeed_runs: Trained, tmp_path: Path) -> None:
    """A rank may hold nothing of a parameter; it is complete like any other."""
    folder = tmp_path / "it"
    shutil.copytree(deepspeed_runs.folder / "zero1" / "step2", folder)
    file = folder / "mp_rank_00_model_states.pt"
    content = torch.load(file, weights_only=False)
    content["param_shapes"][1]["none"] = torch.Size([0, 3])
    torch.save(content, file)
    source = open_deepspeed(folder, NOTHING)
    states = ("exp_avg", "exp_avg_sq", "param", "step")
    held = deepspeed_runs.held("zero1")
    assert differing(source.index, folder, held) == [("none", each) for each in states]
    assert source.values["param_groups"]["none"] == source.values["param_groups"]["norm.bias"]


def test_a_tie_of_what_has_values_of_its_own_is_refused(deepspeed_runs: Trained) -> None:
    """Declared to be another's, a parameter's values would be lost, or be there twice."""
    folder = deepspeed_runs.folder / "zero1" / "step2"
    declared = Declared(tied={"head.weight": "embed.weight"})
    assert open_deepspeed(folder, declared).index.tied == {"head.weight": "embed.weight"}
    with pytest.raises(InputInvalid, match=r"norm.bias is declared to be tied .* of its own"):
        open_deepspeed(folder, Declared(tied={"norm.bias": "inner.bias"}))


@pytest.mark.parametrize("name", ["zero1", "zero3"])
def test_declared_rules_and_names(deepspeed_runs: Trained, name: str) -> None:
    """Rules rearrange a parameter and all of its slots; renames hold for all names."""
    widths = ((2, 1), (4, 2))
    declared = Declared(
        rules=(
            (re.compile("^inner.weight"), SubBlocks(0, widths)),
            (re.compile("^table"), VocabPad(0, 20)),
        ),
        renames=(Rename(re.compile(r"^embed\.weight"), "table"),),
    )
    source = open_deepspeed(deepspeed_runs.folder / name / "step2", declared)
    expected = {}
    order = [0, 1, 3, 4, 5, 6, 2, 7, 8]
    for (key, state), tensor in deepspeed_runs.held(name).items():
        logical = "table" if key == "embed.weight" else key
        changed = tensor
        if tensor.dim() and key == "inner.weight":
            changed = tensor[order]
        if tensor.dim() and logical == "table":
            changed = tensor[:20]
        expected[logical, state] = changed
    assert differing(source.index, source.folder, expected) == []
    assert source.values["param_groups"]["table"]["weight_decay"] == 0.1
    assert source.index.tied == {"head.weight": "table"}


def test_unused_declaration(deepspeed_runs: Trained) -> None:
    """A declaration that fits no tensor was meant for another source."""
    declared = Declared(rules=((re.compile("experts"), VocabPad(0, 4)),))
    with pytest.raises(InputInvalid, match="experts"):
        open_deepspeed(deepspeed_runs.folder / "zero1" / "step2", declared)


@dataclass
class Address:
    """Stands for deepspeed.utils.tensor_fragment.fragment_address: numbers under the same names."""

    numel: int
    start: int


@dataclass
class Pretended:
    """A ZeRO-1 checkpoint of two ranks, made here so that it can be wrong in any way.

    `a` is 3 x 4, `b` has 5 elements; flat: 17 and 3 of padding, 10 for each rank.
    """

    model: dict[str, Any]
    ranks: list[dict[str, Any]]

    @classmethod
    def good(cls) -> "Pretended":
        """One with nothing wrong."""
        mappings = [{"a": Address(10, 0)}, {"a": Address(2, 0), "b": Address(5, 2)}]
        ranks = []
        for rank in range(2):
            state = {
                "step": torch.tensor(2.0),
                "exp_avg": torch.arange(10.0) + 100 * rank,
                "lost": None,
                "beta": 0.5,
            }
            ranks.append({
                "zero_stage": 1,
                "base_optimizer_state": {
                    "state": {0: state},
                    "param_groups": [{"lr": 0.1, "params": [0]}],
                },
                "single_partition_of_fp32_groups": [torch.arange(10.0 - 3 * rank) + 10 * rank],
                "group_paddings": [3 * rank],
                "partition_count": [2],
                "param_slice_mappings": [mappings[rank]],
            })  # fmt: skip
        model = {
            "module": {"a": torch.zeros(3, 4), "b": torch.zeros(5)},
            "param_shapes": [{"a": torch.Size([3, 4]), "b": torch.Size([5])}],
            "shared_params": {},
            "global_steps": 2,
            "dp_world_size": 2,
            "mp_world_size": 1,
        }
        return cls(model, ranks)

    def save(self, folder: Path) -> Path:
        """Write it."""
        folder.mkdir(exist_ok=True)
        torch.save(self.model, folder / "mp_rank_00_model_states.pt")
        for rank, state in enumerate(self.ranks):
            name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            torch.save({"optimizer_state_dict": state}, folder / name)
        return folder

    def slots(self, rank: int) -> dict[str, Any]:
        """A rank's base optimizer state."""
        found: dict[str, Any] = self.ranks[rank]["base_optimizer_state"]["state"][0]
        return found


def test_pretended_one_is_good(tmp_path: Path) -> None:
    """Sabotaged twin turned round: what the wrong ones below are made from is read."""
    source = open_deepspeed(Pretended.good().save(tmp_path / "it"), NOTHING)
    flat = torch.arange(17.0)
    slot = torch.cat([torch.arange(10.0), torch.arange(7.0) + 100])
    held = {
        ("a", "param"): flat[:12].reshape(3, 4),
        ("b", "param"): flat[12:],
        ("a", "exp_avg"): slot[:12].reshape(3, 4),
        ("b", "exp_avg"): slot[12:],
        ("a", "step"): torch.tensor(2.0),
        ("b", "step"): torch.tensor(2.0),
    }
    assert differing(source.index, source.folder, held) == []
    assert source.values["slots"] == {"a": {"beta": 0.5}, "b": {"beta": 0.5}}


def test_what_is_no_tensor_is_never_lost_in_silence(tmp_path: Path) -> None:
    """Extra state of modules and of the client is carried as JSON, or listed as left out."""
    pretended = Pretended.good()
    pretended.model["module"]["norm._extra_state"] = {"amax": [1.0]}
    pretended.model["module"]["fp8._extra_state"] = b"opaque"
    pretended.model["generator"] = torch.zeros(3)
    values = open_deepspeed(pretended.save(tmp_path / "it"), NOTHING).values
    assert values["other"] == {"module.norm._extra_state": {"amax": [1.0]}}
    assert values["left_out"] == ["generator", "module.fp8._extra_state"]


def _endless() -> Any:
    """A list of two of a list of two of ..., sixty deep: its text never ends."""
    value: Any = []
    for _ in range(60):
        value = [value, value]
    return value


def test_endless_values_end(tmp_path: Path) -> None:
    """A value whose text or number of parts never ends is refused or left out at once."""
    pretended = Pretended.good()
    pretended.model["client"] = _endless()
    values = open_deepspeed(pretended.save(tmp_path / "it"), NOTHING).values
    assert values["left_out"] == ["client"]
    places: dict[str, Change] = {
        "zero_stage": lambda it: it.ranks[0].update(zero_stage=_endless()),
        "partition_count": lambda it: it.ranks[0].update(partition_count=_endless()),
        "dp": lambda it: it.model.update(dp_world_size=_endless()),
        "mp": lambda it: it.model.update(mp_world_size=_endless()),
        "shape": lambda it: it.model["param_shapes"][0].update(a=_endless()),
        "slot": lambda it: it.slots(0).update(exp_avg=_endless()),
        "setting": lambda it: it.ranks[0]["base_optimizer_state"]["param_groups"][0].update(
            lr=_endless()),
    }  # fmt: skip
    for change in places.values():
        pretended = Pretended.good()
        change(pretended)
        with pytest.raises((InputInvalid, CheckpointDamaged)):
            open_deepspeed(pretended.save(tmp_path / "it"), NOTHING)


Change = Callable[[Pretended], Any]
_WRONG: dict[str, tuple[Change, str]] = {
    "no stage": (lambda it: it.ranks[0].pop("zero_stage"), "no ZeRO stage"),
    "two stages": (lambda it: it.ranks[1].update(zero_stage=2), "different ZeRO stages"),
    "tensor parallel": (lambda it: it.model.update(mp_world_size=2), "2 model-parallel ranks"),
    "experts": (lambda it: it.ranks[0].update(partition_count=[2, 1]), "groups of ranks"),
    "more ranks": (lambda it: it.model.update(dp_world_size=4), "4 data-parallel ranks"),
    "no shapes": (lambda it: it.model.update(param_shapes=None), "param_shapes"),
    "a shape beyond counting": (
        lambda it: it.model["param_shapes"][0].update(a=torch.Size([1 << 40, 1 << 40])),
        "the shape of 'a'",
    ),
    "a pipeline": (lambda it: it.model.update(module=None), "module"),
    "elastic of nothing": (
        lambda it: it.ranks[0].update(base_optimizer_state=[]),
        "base_optimizer_state",
    ),
    "a torn parameter": (
        lambda it: it.ranks[1]["param_slice_mappings"][0].update(a=Address(2, 1)),
        "a .param.: its fragment on rank 1 does not continue",
    ),
    "a short parameter": (
        lambda it: it.ranks[1]["param_slice_mappings"][0].pop("a"),
        "a .param.: its fragments have 10 elements",
    ),
    "a fragment outside": (
        lambda it: it.ranks[1]["param_slice_mappings"][0].update(b=Address(5, 3)),
        "ends at element 8 of 7",
    ),
    "fragments that overlap": (
        lambda it: it.ranks[1]["param_slice_mappings"][0].update(b=Address(5, 1)),
        "has the same elements",
    ),
    "an unknown parameter": (
        lambda it: it.ranks[1]["param_slice_mappings"][0].update(c=Address(1, 1)),
        "'c' is mapped",
    ),
    "an address that is none": (
        lambda it: it.ranks[1]["param_slice_mappings"][0].update(b=(5, 2)),
        "the address of b",
    ),
    "a step that differs": (
        lambda it: it.slots(1).update(step=torch.tensor(3.0)),
        "'step': ranks hold 2 different values",
    ),
    "a number that differs": (lambda it: it.slots(1).update(beta=1.0), "'beta': ranks hold 2"),
    "a slot lost on one rank": (lambda it: it.slots(1).pop("exp_avg"), "'exp_avg'"),
    "a factored slot": (
        lambda it: [it.slots(r).update(row=torch.zeros(3)) for r in (0, 1)],
        "'row': it is neither",
    ),
    "a slot in two dtypes": (
        lambda it: it.slots(1).update(exp_avg=torch.zeros(10, dtype=torch.bfloat16)),
        "different dtypes",
    ),
    "settings with objects": (
        lambda it: it.ranks[0]["base_optimizer_state"]["param_groups"][0].update(f=Address(1, 1)),
        "no plain data",
    ),
    "no masters": (
        lambda it: it.ranks[0].update(single_partition_of_fp32_groups=[]),
        "flat fp32 parameters",
    ),
    "a master that is no tensor": (
        lambda it: it.ranks[0].update(single_partition_of_fp32_groups=[5]),
        "no flat tensor",
    ),
}


@pytest.mark.parametrize("name", list(_WRONG))
def test_wrong_ones_are_refused(name: str, tmp_path: Path) -> None:
    """Whatever does not fit the layout is refused by a sentence that names it."""
    change, words = _WRONG[name]
    pretended = Pretended.good()
    change(pretended)
    with pytest.raises((InputInvalid, CheckpointDamaged), match=words):
        open_deepspeed(pretended.save(tmp_path / "it"), NOTHING)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("zero_pp_rank_0_mp_rank_01_optim_states.pt", "rank 1 .model-parallel rank 1. is missing"),
        ("layer_00-model_00-model_states.pt", None),
        ("layer_00_model_00_model_states.pt", "pipeline"),
        ("layer_0_expert_1_mp_rank_00_model_states.pt", "mixture of experts"),
        ("expp_rank_0_mp_rank_00_optim_states.pt", "mixture of experts"),
        ("offloaded_tensors", "NVMe"),
        ("zero", "universal format"),
        ("fp16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "two files are rank 0's"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, file: str, words: str | None) -> None:
    """Files of a layout that is not supported are named."""
    folder = Pretended.good().save(tmp_path / "it")
    (folder / file).touch()
    if words is None:
        open_deepspeed(folder, NOTHING)
    else:
        with pytest.raises((InputInvalid, CheckpointDamaged), match=words):
            open_deepspeed(folder, NOTHING)


@pytest.mark.parametrize("rank", [0, 1])
def test_missing_rank(deepspeed_runs: Trained, tmp_path: Path, rank: int) -> None:
    """A rank's file that is gone is an error, the first as well as the last."""
    folder = tmp_path / "it"
    shutil.copytree(deepspeed_runs.folder / "zero1" / "step2", folder)
    (folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointDamaged, match=r"missing|2 data-parallel ranks"):
        open_deepspeed(folder, NOTHING)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files(deepspeed_runs: Trained, tmp_path: Path, data: st.DataObject) -> None:
    """A flipped or missing byte is refused, or changes nothing but the bytes of a tensor."""
    run = data.draw(st.sampled_from(["zero1", "zero3"]))
    whole = deepspeed_runs.folder / run / "step2"
    expected = open_deepspeed(whole, NOTHING)
    names = sorted(expected.files)
    _, found = damaged(data, whole, tmp_path / run, names, lambda at: open_deepspeed(at, NOTHING))
    assert found is None or same_index(found, expected)


def _nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value inside dicts and lists."""
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else inner:
        yield from _nodes(each, (*path, key))


_STRANGE: tuple[Any, ...] = (
    None, 5, -1, 1 << 70, True, "a", b"y", [], {}, (), 1.5, [None], {0: 1}, {"a": None}, ("a",),
    torch.Size([1 << 40]), torch.float16, torch.zeros(10), torch.tensor(0.0), torch.zeros(0),
    torch.zeros(20)[::2], Address(1, 2),
)  # fmt: skip


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_strange_values_anywhere(tmp_path: Path, data: st.DataObject) -> None:
    """Any value in the place of any other is refused or carried, never another error."""
    pretended = Pretended.good()
    top = {"model": pretended.model, "ranks": pretended.ranks}
    path = data.draw(st.sampled_from([each for each in _nodes(top) if len(each) > 1]))
    holder: Any = top
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = data.draw(st.sampled_from(_STRANGE))
    if isinstance(pretended.ranks[0], dict) and isinstance(pretended.ranks[1], dict):
        with contextlib.suppress(InputInvalid, CheckpointDamaged):
            open_deepspeed(pretended.save(tmp_path / "it"), NOTHING)
