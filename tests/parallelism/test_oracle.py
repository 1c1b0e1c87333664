"""The vectorised cost model counts what an independent oracle counts, one configuration at a time.

Everything that a formula leaves out (launches, shapes, what overlaps) is set to nothing, so that
seconds are operations over a rate, or bytes over a rate.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.parallelism import oracle
from tests.parallelism.rows import Drawn, Row, legal, read, row
from wattmesh.policies.parallelism import collectives
from wattmesh.policies.parallelism.energy import PowerShares, step_energy
from wattmesh.policies.parallelism.hardware import FAMILIES, GENERATIONS
from wattmesh.policies.parallelism.memory import memory
from wattmesh.policies.parallelism.model_shape import parameters
from wattmesh.policies.parallelism.parameters import Parameters, prior_logarithms, unpack
from wattmesh.policies.parallelism.presets import preset
from wattmesh.policies.parallelism.setups import Setups
from wattmesh.policies.parallelism.step_time import step_time, tokens_of_rank

NETWORK, LINK = 0.5, 0.25
IDEAL: Parameters = replace(
    unpack(prior_logarithms()),
    matmul=np.linspace(0.4, 0.9, len(GENERATIONS)),
    family=np.linspace(0.8, 1.2, len(FAMILIES)),
    attention=np.linspace(0.2, 0.5, len(GENERATIONS)),
    grouped=np.linspace(0.3, 0.6, len(GENERATIONS)),
    half_rows=0.0,
    half_columns=0.0,
    half_columns_short=0.0,
    half_expert_rows=0.0,
    half_expert_columns=0.0,
    launch_s=0.0,
    latency_s=0.0,
    network=NETWORK,
    link=LINK,
    tensor_exposed=1.0,
    expert_exposed=1.0,
    context_exposed=1.0,
    stage_exposed=1.0,
    reduction_hidden=0.0,
    reduction_tail=1.0,
    gather_overhead=0.0,
    head=1.0,
    optimizer_bytes=0.0,
    step_s=0.0,
    straggling=0.0,
)
PLAIN = {"model": "", "notes": "", "framework": "torchtitan"}
"""What the oracle does not know: names that stand for other attention, adapters, old kernels."""


def ideal(rows: list[Row]) -> Setups:
    """Read rows; memory takes no time."""
    found = read(*rows).setups
    fast = np.full(len(rows), np.inf)
    return replace(found, hardware=replace(found.hardware, memory_bytes_per_s=fast))


def near(found: object, expected: list[float]) -> None:
    """Compare arrays of counts."""
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-9, atol=1e-30)


def drawn_rows(check: Callable[[Row], None], examples: int = 60, **fixed: object) -> Drawn:
    """Give a check as many legal rows of plain models as it asks for."""
    drawn = Drawn()

    @settings(max_examples=examples)
    @given(legal(**PLAIN, **fixed))
    def every(one: Row) -> None:
        drawn.add(one)
        check(one)

    every()
    return drawn


def check_products(one: Row) -> None:
    """Compare the seconds of matrix products with operations over rates."""
    found, case = ideal([one]), oracle.case(one)
    hardware = found.hardware
    family, generation = int(hardware.family[0]), int(hardware.generation[0])
    faster = {"b": 1.0, "f": 1.0, "n": 4 * IDEAL.fp4}[one["precision"][0]]
    if one["precision"].startswith("fp8"):
        faster = 2 * IDEAL.fp8
    peak = float(np.asarray(hardware.matmul_flops)[0])
    rate = peak * float(IDEAL.matmul[generation] * IDEAL.family[family]) * faster
    plain, experts, attention = oracle.products_flops(case)
    head = case.m * 3 * oracle.head_flops(case) / case.P
    expected = (plain - head) / rate
    expected += head / (
        peak * float(IDEAL.matmul[generation] * IDEAL.family[family])
    )  # the output layer stays in bf16
    expected += experts / (rate * float(IDEAL.grouped[generation]))
    expected += attention / (peak * float(IDEAL.attention[generation]))
    near(step_time(found, IDEAL).products_s, [expected])


def test_products_take_their_operations_over_the_rate() -> None:
    """Of each kind: plain, experts', attention, output layer; again where all is recomputed."""
    drawn = drawn_rows(check_products, 250)
    missing = {name for name, _ in drawn.missing()}
    assert missing <= {"notes", "framework", "model"}


def check_volumes(one: Row) -> None:
    """Compare seconds times rates with bytes."""
    found, case = ideal([one]), oracle.case(one)
    tokens = tokens_of_rank(found)
    assert float(np.asarray(tokens)[0]) == case.S
    # With one rate everywhere, seconds are bytes.
    even = replace(
        found.hardware,
        link_bytes_per_s=np.array([1 / LINK]),
        network_bytes_per_s=np.array([1 / NETWORK]),
    )
    same = replace(found, hardware=even)
    with_experts = float(case.experts > 0)
    near(collectives.tensor_parallel_s(same, tokens, IDEAL), [oracle.tensor_bytes(case)])
    near(collectives.context_parallel_s(same, tokens, IDEAL), [oracle.context_bytes(case)])
    experts = collectives.expert_parallel_s(same, tokens, with_experts, IDEAL)
    domain = float(np.asarray(same.hardware.domain)[0])
    sent_by_experts = oracle.expert_bytes(case) + oracle.expert_network_bytes(case, domain)
    near(experts, [sent_by_experts])
    near(collectives.stage_s(same, tokens, IDEAL), [oracle.stage_bytes(case)])
    held = tuple(np.array([each]) for each in oracle.rank_parameters(case))
    dealt = np.add(*collectives.dealt_parameters(same, *held))
    bytes_each = (4.0, 6.0, 6.0, 6.0)[case.zero]
    near(dealt * bytes_each, [oracle.reduction_bytes(case)])
    if case.zero != 3:
        layers = case.m * case.L / case.P
        inside = oracle.tensor_bytes(case) + oracle.context_bytes(case) + sent_by_experts
        sent = layers * inside + case.m * oracle.stage_bytes(case) + oracle.reduction_bytes(case)
        near(step_time(same, IDEAL).exposed_s, [sent])


def test_ranks_send_the_volumes_of_the_formulas() -> None:
    """By dimension, and all that is exposed in a step where nothing is hidden."""
    drawn = drawn_rows(check_volumes, 250)
    assert {name for name, _ in drawn.missing()} <= {"notes", "framework", "model"}


def check_pipeline(one: Row) -> None:
    """Compare a step of products only with microbatches and the pipeline's filling."""
    found, case = ideal([one]), oracle.case(one)
    endless = np.array([math.inf])
    hardware = replace(found.hardware, link_bytes_per_s=endless, network_bytes_per_s=endless)
    found = replace(found, hardware=hardware)
    family, generation = int(hardware.family[0]), int(hardware.generation[0])
    peak = float(np.asarray(hardware.matmul_flops)[0])
    rate = peak * float(IDEAL.matmul[generation] * IDEAL.family[family])
    plain, experts = oracle.matmul_flops(case)
    again = 1 if case.recompute == "full" else 0
    layer = (plain + experts / float(IDEAL.grouped[generation])) * (3 + again) / rate
    layer += oracle.attention_flops(case) * (3.5 + again) / (peak * IDEAL.attention[generation])
    head = 3 * oracle.head_flops(case) / rate
    near(step_time(found, IDEAL).total_s, [oracle.pipeline_s(case, layer, head, 0.0)])


def test_a_step_is_its_microbatches_and_the_filling_of_the_pipeline() -> None:
    """The bubble is (P - 1) / v microbatches."""
    drawn_rows(check_pipeline, 60, precision="bf16")


def check_state(one: Row) -> None:
    """Compare the bytes of weights, gradients and optimizer."""
    near(memory(read(one).setups).state, [oracle.state_bytes(oracle.case(one))])


def test_state_is_dealt_as_zero_deals_it() -> None:
    """Stages 0 to 3, dense parameters and experts'."""
    drawn = drawn_rows(check_state, 250)
    assert not {each for each in drawn.missing() if each[0] in ("zero", "experts", "ep > 1")}


def check_activations(one: Row) -> None:
    """Compare what the first stage keeps of its microbatches."""
    case = oracle.case(one)
    found = memory(read(one).setups)
    kept = oracle.activation_bytes(case, sequence_parallel=True)
    near(found.activations, [kept])
    parts = np.asarray(found.state) + found.activations + found.transient
    near(found.total, parts.tolist())


def test_activations_are_those_of_the_fullest_stage() -> None:
    """Plain feed-forward parts, a small vocabulary: the first stage has most in flight."""
    drawn = Drawn()

    @settings(max_examples=150)
    @given(
        legal(
            **PLAIN | {"gated_mlp": 0, "experts": "", "topk": "", "moe_ffn": "", "ep": 1},
            zero=1,
            vocab=1,
        )
    )
    def every(one: Row) -> None:
        drawn.add(one)
        check_activations(one)

    every()
    assert not {each for each in drawn.missing() if each[0] in ("recompute", "pp", "vpp > 1")}


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("llama3-8b", 8.03),
        ("llama3-70b", 70.6),
        ("gpt3-175b", 175.2),
        ("deepseek-v3", 671.0),
        ("qwen3-30b-a3b", 30.5),
        ("qwen3-235b-a22b", 235.1),
        ("mixtral-8x22b", 140.6),
    ],
)
def test_presets_have_the_parameters_they_are_named_for(model: str, billions: float) -> None:
    """Within two percent of what their publishers say."""
    shape = preset(model)
    assert shape is not None
    assert float(parameters(shape)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_joules_are_watts_by_phase() -> None:
    """Each phase alone draws its share above idle; the node's part is added."""
    found = read(row(gpu="h100", num_gpus=8, tp=1, pp=1, global_batch=8)).setups
    shares = PowerShares(products=0.9, memory=0.5, exposed=0.4, waiting=0.1, node_w_per_gpu=100.0)
    time = step_time(found, unpack(prior_logarithms()))
    zeros = np.zeros(1)
    for phase, share in (("products", 0.9), ("memory", 0.5), ("exposed", 0.4), ("waiting", 0.1)):
        parts = dict.fromkeys(("products_s", "memory_s", "exposed_s", "waiting_s"), zeros)
        only = replace(time, total_s=np.array([2.0]), **parts | {f"{phase}_s": np.array([2.0])})
        energy = step_energy(found, only, shares)
        near(energy.gpu_w, [72 + share * (700 - 72)])
        near(energy.node_w, [172 + share * (700 - 72)])
        near(energy.j_per_token, [(172 + share * 628) * 8 * 2.0 / (8 * 8192)])


# Sabotaged twins.


def test_a_forgotten_backward_pass_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that counts the forward pass only disagrees with the oracle."""
    one = row(**PLAIN)
    check_products(one)
    once = oracle.Case
    monkeypatch.setattr(once, "m", property(lambda of: of.B // (of.D * of.b) * 3))
    with pytest.raises(AssertionError):
        check_products(one)


def test_a_doubled_dispatch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts' tokens counted twice disagree with the oracle."""
    one = row(**PLAIN, experts=8, topk=2, moe_ffn=1024, ep=8)
    check_volumes(one)
    real = collectives.expert_parallel_s
    monkeypatch.setattr(collectives, "expert_parallel_s", lambda *how: 2 * np.asarray(real(*how)))
    with pytest.raises(AssertionError):
        check_volumes(one)
