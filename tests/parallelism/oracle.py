"""What a step computes, sends and holds, of one configuration, in plain numbers.

Written from the papers' formulas alone, to judge the vectorised cost model by: 2104.04473
(operations, pipeline), 2205.05198 (activations), 1910.02054 (ZeRO), 2310.01889 (ring attention).
Symbols as there: L layers, h hidden, s seq, b micro batch, T, P, C, D, E degrees of tp, pp, cp, dp,
ep; S = b * s / C tokens of a rank; m microbatches.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A configuration of a plain model: no latent attention, no window, no shared experts."""

    L: int
    h: int
    heads: int
    kv_heads: int
    F: int
    g: int
    V: int
    experts: int
    K: int
    Fe: int
    s: int
    b: int
    B: int
    T: int
    P: int
    C: int
    D: int
    E: int
    v: int
    zero: int
    recompute: str

    @property
    def S(self) -> float:
        """Tokens of a rank in a microbatch."""
        return self.b * self.s / self.C

    @property
    def m(self) -> int:
        """Microbatches of a step."""
        return self.B // (self.D * self.b)

    @property
    def kv(self) -> float:
        """Keys' width over queries'."""
        return self.kv_heads / self.heads


def case(row: Mapping[str, str]) -> Case:
    """Read a row."""

    def whole(name: str) -> int:
        return int(row[name] or 0)

    return Case(
        L=whole("layers"),
        h=whole("hidden"),
        heads=whole("heads"),
        kv_heads=whole("kv_heads"),
        F=whole("ffn"),
        g=2 + whole("gated_mlp"),
        V=whole("vocab"),
        experts=whole("experts"),
        K=whole("topk"),
        Fe=whole("moe_ffn"),
        s=whole("seq_len"),
        b=whole("micro_batch"),
        B=whole("global_batch"),
        T=whole("tp"),
        P=whole("pp"),
        C=whole("cp"),
        D=whole("num_gpus") // (whole("tp") * whole("pp") * whole("cp")),
        E=whole("ep"),
        v=whole("vpp"),
        zero=whole("zero"),
        recompute=row["recompute"],
    )


def matmul_flops(of: Case) -> tuple[float, float]:
    """Count forward operations of a layer, microbatch and rank: plain, of experts."""
    attention = 2 * of.S * 2 * of.h**2 * (1 + of.kv) / of.T
    if of.experts:
        return attention, 2 * of.S * of.K * of.g * of.h * of.Fe / of.T
    return attention + 2 * of.S * of.g * of.h * of.F / of.T, 0.0


def attention_flops(of: Case) -> float:
    """Count forward operations of causal attention of a layer, microbatch and rank."""
    return 2 * of.S * of.s * of.h / of.T


def head_flops(of: Case) -> float:
    """Count forward operations of the output layer on its stage, of a microbatch and rank."""
    return 2 * of.S * of.h * of.V / of.T


def products_flops(of: Case) -> tuple[float, float, float]:
    """Count operations of a step on an average rank: plain, experts', attention.

    Backward is twice forward; attention is computed again there (half of backward more).
    """
    again = 1 if of.recompute == "full" else 0
    plain, experts = matmul_flops(of)
    layers = of.m * of.L / of.P
    head = of.m * 3 * head_flops(of) / of.P
    return (
        layers * plain * (3 + again) + head,
        layers * experts * (3 + again),
        layers * attention_flops(of) * (3.5 + again),
    )


def tensor_bytes(of: Case) -> float:
    """Count bytes that a rank sends for a layer and microbatch: gathers and scatters."""
    one = 2 * of.S * of.h * (of.T - 1) / of.T
    forward, backward = 4 * one, 4 * one
    return forward + backward + (2 * one if of.recompute == "full" else 0)


def context_bytes(of: Case) -> float:
    """Count bytes that a rank sends for a layer and microbatch: the ring of keys and values."""
    forward = 2 * 2 * of.S * (of.kv * of.h / of.T) * (of.C - 1)
    return forward + 2 * forward


def expert_bytes(of: Case) -> float:
    """Count bytes that a rank sends for a layer and microbatch: tokens to experts and back."""
    if not of.experts:
        return 0.0
    one = 2 * of.S / of.T * of.K * of.h * (of.E - 1) / of.E
    forward, backward = 2 * one, 2 * one
    return forward + backward


def expert_network_bytes(of: Case, domain: float) -> float:
    """Count the bytes of them that leave a domain: a token goes once to each that it needs.

    Of n domains, K experts drawn at random lie in (n - 1)(1 - (1 - 1/n)^K) others.
    """
    if not of.experts or domain >= of.E:
        return 0.0
    n = of.E / domain
    others = (n - 1) * (1 - (1 - 1 / n) ** of.K)
    return 4 * 2 * of.S / of.T * of.h * others


def stage_bytes(of: Case) -> float:
    """Count bytes between stages of a microbatch: activations, and their gradients back."""
    return 0.0 if of.P == 1 else 2 * 2 * of.S * of.h / of.T * of.v


def rank_parameters(of: Case) -> tuple[float, float]:
    """Count parameters of a stage on a rank, dealt over T and E but not over D: dense, experts."""
    attention = 2 * of.h**2 * (1 + of.kv)
    tables = (1 if of.P > 1 else 2) * of.V * of.h
    if of.experts:
        experts = of.L / of.P * of.experts * of.g * of.h * of.Fe / of.E
        return (of.L / of.P * attention + tables) / of.T, experts
    return (of.L / of.P * (attention + of.g * of.h * of.F) + tables) / of.T, 0.0


def owners(of: Case) -> tuple[float, float]:
    """Count ranks that share dense parameters, and experts'."""
    return of.D * of.C, max(1.0, of.D * of.C * of.T / of.E)


def reduction_bytes(of: Case) -> float:
    """Count bytes that a rank sends for gradients and weights: of a step, FSDP: of a microbatch."""
    total = 0.0
    for count, ranks in zip(rank_parameters(of), owners(of), strict=True):
        part = count * (ranks - 1) / ranks
        all_reduce, scatter_gather, fsdp = 2 * 2 * part, (4 + 2) * part, (2 * 2 + 2) * part
        total += (all_reduce, scatter_gather, scatter_gather, fsdp)[of.zero]
    return total


def state_bytes(of: Case) -> float:
    """Count bytes of weights, gradients and Adam's state (master weight, two moments) of a rank."""
    total = 0.0
    for count, ranks in zip(rank_parameters(of), owners(of), strict=True):
        gradient = 2 if of.zero == 3 else 4
        per_parameter = (
            2 + gradient + 12,
            2 + gradient + 12 / ranks,
            2 + (gradient + 12) / ranks,
            (2 + gradient + 12) / ranks,
        )[of.zero]
        total += count * per_parameter
    return total


def activation_bytes(of: Case, *, sequence_parallel: bool) -> float:
    """Count bytes that the first stage keeps, of a model with plain feed-forward parts, dense.

    Attention never writes its scores: of them 4 bytes of each head and token are kept.
    """
    if of.recompute == "full":
        layer = 2 * of.S * of.h / (of.T if sequence_parallel else 1)
    else:
        norms = 8 * of.S * of.h / (of.T if sequence_parallel else 1)
        inside = of.S * ((4 + 4 * of.kv) * of.h + 4 * of.F + 4 * of.heads) / of.T
        layer = norms + inside
    in_flight = min(of.m, of.P) * (1 + (of.P - 1) / (of.P * of.v) if of.v > 1 else 1)
    return in_flight * of.L / of.P * layer


def pipeline_s(of: Case, layer_s: float, head_s: float, send_s: float) -> float:
    """Give seconds of the microbatches and of filling the pipeline (interleaved 1F1B)."""
    stage = of.L / of.P * layer_s
    filling = (of.P - 1) / of.v * (stage + head_s / of.P + send_s)
    return of.m * (stage + head_s + send_s) + filling
