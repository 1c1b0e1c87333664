"""A model of transformers, cut by its own tensor-parallel plan and sharded by FSDP2.

The model is made whole on every rank, then cut by transformers' own styles, but for two of its
ways: tied weights are untied before and tied after, and gradients of norms that see a part of the
heads are summed as they come.

Invariant: a plan under which the model would compute something else is refused before the model is
changed.
"""

import re
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.meshes import Meshes
from wattmesh.reconfig import torch_compat

try:
    from transformers import PreTrainedModel
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism
except ImportError as error:
    raise ImportError(
        "wattmesh.integrations.pytorch.huggingface needs transformers 5.24 in the training "
        f"environment ({error})."
    ) from error

CUTS: dict[str, tuple[type[nn.Module], int]] = {
    "colwise": (nn.Linear, 0),
    "colwise_gather_output": (nn.Linear, 0),
    "embedding_rowwise": (nn.Embedding, 0),
    "rowwise": (nn.Linear, 1),
}
"""Styles that tests have seen: what each cuts, and which dim of its weight."""

SUMMED = "replicated_with_grad_allreduce"
"""Style of what is whole on every rank, and sees only this rank's heads (Qwen3's q_norm)."""


def sharded(model: nn.Module, meshes: Meshes, mp_policy: MixedPrecisionPolicy | None) -> nn.Module:
    """Cut a whole model by its `tp_plan` where tp > 1, and shard it by FSDP2; in place.

    Blocks are sharded by the `*` rules of the model's `fsdp_plan`, all else with its root.

    Raises:
        InputInvalid: this is no model of transformers, or its plan does not fit the layout.
    """
    if not isinstance(model, PreTrainedModel):
        raise InputInvalid(
            f"transformers: the script makes a {type(model).__name__}, which is no PreTrainedModel "
            "and has no tensor-parallel plan; attach it by a `build` of your own."
        )
    empty = next((name for name, each in model.named_parameters() if each.is_meta), "")
    if empty:
        raise InputInvalid(
            f"transformers: {empty} is on the meta device and has no values; make the model with "
            "its weights on the CPU."
        )
    if meshes.layout.tp > 1:
        _cut(model, meshes)
    policy = mp_policy or MixedPrecisionPolicy()
    plan = model.fsdp_plan or {}
    blocks = [
        module
        for name, module in model.named_modules()
        if "*" in (key := _rule(name)) and key in plan
    ]
    for each in reversed(blocks):
        fully_shard(each, mesh=meshes.data, mp_policy=policy)
    fully_shard(model, mesh=meshes.data, mp_policy=policy)
    return model


def _cut(model: Any, meshes: Meshes) -> None:
    tp = meshes.layout.tp
    mesh = meshes.parameters["tp"]
    plan: dict[str, str] = torch_compat.part_of(model, "_expand_parallel_plan")(model.tp_plan or {})
    modules = dict(model.named_modules())
    tied = _tied(model)
    _check_plan(model, plan, tp)
    _check_styles(plan, modules, tied)
    _check_cuts(model, plan, modules, tp)
    for names in tied:
        _untie(modules, names)
    summed = [name for name, style in plan.items() if style == SUMMED]
    apply_tensor_parallelism(
        model, mesh, {name: style for name, style in plan.items() if style != SUMMED}
    )
    for name in summed:
        if name in modules:
            modules[name].register_forward_pre_hook(_SumGradients(mesh.get_group()))
    for names in tied:
        _tie_again(modules, names)


def _check_plan(model: Any, plan: dict[str, str], tp: int) -> None:
    """Refuse a model without a plan, and one whose heads would be cut in two."""
    if not plan:
        raise InputInvalid(
            f"transformers: {type(model).__name__} has no tensor-parallel plan, so tp = {tp} is "
            "not possible; set `model.tp_plan` where the model is made."
        )
    if not any("attn" in name or "attention" in name for name in plan):
        return
    config = model.config.get_text_config()
    for what in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, what, None) or 0
        for count in heads if isinstance(heads, list) else [heads]:
            if count % tp:
                raise InputInvalid(
                    f"transformers: {what} = {count} cannot be shared by tp = {tp} ranks: a head "
                    "would be cut in two; attention left out of `model.tp_plan` stays whole."
                )


def _check_styles(
    plan: dict[str, str], modules: dict[str, nn.Module], tied: list[list[str]]
) -> None:
    """Refuse what transformers would cut wrongly, or in a way that no test of ours has seen."""
    for name, style in plan.items():
        if style not in {*CUTS, SUMMED}:
            raise InputInvalid(
                f"transformers: {name} has the tensor-parallel style {style}; tested are "
                f"{', '.join(sorted({*CUTS, SUMMED}))}."
            )
        # A parameter's own entry is held by its module's.
        if style in CUTS and name in modules and type(modules[name]) is not CUTS[style][0]:
            raise InputInvalid(
                f"transformers: {name} is a {type(modules[name]).__name__}, and its style {style} "
                f"cuts a {CUTS[style][0].__name__}; adapters and quantized layers are not cut."
            )
    for names in tied:
        if len({CUTS.get(plan.get(name, ""), (None, None))[1] for name in names}) > 1:
            raise InputInvalid(
                f"transformers: {' and '.join(names)} are one tensor, and the tensor-parallel plan "
                "cuts them in two ways; give both a rule that cuts the vocabulary."
            )


def _check_cuts(
    model: nn.Module, plan: dict[str, str], modules: dict[str, nn.Module], tp: int
) -> None:
    """Refuse parts that would be empty, and parameters whose gradients nobody would sum.

    Between a matrix that is cut by columns and the one after, a rank sees its part of the features;
    what lies there needs a style of its own.
    """
    cut = [name for name, style in plan.items() if style == "colwise" and name in modules]
    between = {name.rpartition(".")[0] for name in cut}
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        style = plan.get(owner, "")
        size = parameter.shape[CUTS[style][1]] if style in CUTS and name.endswith(".weight") else tp
        if -(-size // tp) * (tp - 1) >= size:
            raise InputInvalid(
                f"transformers: {name} has {size} to be shared by tp = {tp} ranks, in equal parts "
                "but for the last one, which leaves nothing for some."
            )
        above = [owner[:at] for at, each in enumerate(owner) if each == "."]
        if between.intersection(above) and not {name, owner, *above} & set(plan):
            raise InputInvalid(
                f"transformers: {name} lies where each of tp = {tp} ranks sees a part of the "
                "features, and the model's plan does not say how its gradients are summed; give "
                f"it a style in `model.tp_plan`, as {SUMMED}."
            )


def _tied(model: nn.Module) -> list[list[str]]:
    """List the names of each parameter that has more than one."""
    names: dict[int, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(each), []).append(name)
    return [each for each in names.values() if len(each) > 1]


def _place(modules: dict[str, nn.Module], name: str) -> tuple[nn.Module, str]:
    module, _, own = name.rpartition(".")
    return modules[module], own


def _untie(modules: dict[str, nn.Module], names: list[str]) -> None:
    """Give each name a parameter of its own: transformers finds only the first name of one."""
    for module, own in (_place(modules, name) for name in names[1:]):
        tied: Any = torch_compat.parameters(module)[own]
        torch_compat.parameters(module)[own] = nn.Parameter(
            tied.detach(), requires_grad=tied.requires_grad
        )


def _tie_again(modules: dict[str, nn.Module], names: list[str]) -> None:
    """Make one parameter of those that were one before each was cut by its own rule."""
    (module, own), *others = [_place(modules, name) for name in names]
    first = torch_compat.parameters(module)[own]
    for module, own in others:
        torch_compat.parameters(module)[own] = first


class _SumGradients:
    """Sums the gradients of a module's own parameters over ranks that each saw a part of the heads.

    On the gradient that comes, not on what has been accumulated: transformers' own hook would sum
    the first microbatch again where FSDP2 synchronizes only the last.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._hooked: dict[str, nn.Parameter] = {}

    def __call__(self, module: nn.Module, args: Any) -> None:
        if not torch.is_grad_enabled():
            return
        for name, each in module.named_parameters(recurse=False):
            if each.requires_grad and self._hooked.get(name) is not each:
                each.register_hook(self._sum)  # type: ignore[no-untyped-call]
                self._hooked[name] = each

    def _sum(self, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total, group=self._group)
        return total


def _rule(name: str) -> str:
    """Return a module's name as plans have it, with `*` for the number of a layer."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)
