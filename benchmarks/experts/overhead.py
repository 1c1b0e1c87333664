"""What the router costs beside a plain one: gate, softmax, bias, top-k, weights and counts.

Both take turns on the same tokens, as many more as a turn is shorter. The figure is the quotient of
the shortest turns of each, by processor time (on a GPU by its own clock), since what others do only
ever makes a turn longer.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattmesh.integrations.pytorch.experts.router import EnergyRouter, RouterMode

DIM = 1024
PER_TOKEN = 8
CASES = ((4096, 64), (4096, 256), (32768, 64))
LEAST_TURNS = 40
SCORES = LEAST_TURNS * 32768 * 64
"""Scores of all turns of a case together."""


class PlainRouter(nn.Module):
    """Loss-free balancing as it is written everywhere."""

    bias_X: Tensor
    counts_X: Tensor

    def __init__(self, experts: int) -> None:
        """Make the gate."""
        super().__init__()
        self.gate = nn.Linear(DIM, experts, bias=False)
        self.register_buffer("bias_X", torch.zeros(experts))
        self.register_buffer("counts_X", torch.zeros(experts, dtype=torch.int64))

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Choose."""
        scores_NX = functional.softmax(self.gate(x_ND), dim=-1)
        chosen_NP = torch.topk(scores_NX.detach() + self.bias_X, PER_TOKEN).indices
        self.counts_X += torch.bincount(chosen_NP.flatten(), minlength=len(self.bias_X))
        return chosen_NP, scores_NX.gather(1, chosen_NP)


def overhead_rows(device: str = "cpu") -> list[dict[str, Any]]:
    """Measure every mode in every case."""
    torch.set_num_threads(1)
    rows = []
    for tokens, experts in CASES:
        x_ND = torch.randn(tokens, DIM, device=device)
        plain = PlainRouter(experts).to(device)
        turns = max(LEAST_TURNS, SCORES // (tokens * experts))
        for mode in (RouterMode.SOFT, RouterMode.TILT, RouterMode.DUAL):
            ours = EnergyRouter(DIM, experts, PER_TOKEN, mode=mode).to(device)
            ours.load_state_dict({"gate.weight": plain.gate.weight}, strict=False)
            ours.set_costs([(-1.0) ** at for at in range(experts)], 1e-3)
            name = f"{mode}, {tokens} tokens, {experts} experts"
            rows.append({"router": name, "router_overhead": _overhead(ours, plain, x_ND, turns)})
    return rows


def _overhead(ours: nn.Module, plain: nn.Module, x_ND: Tensor, turns: int) -> float:
    mine, theirs = [], []
    for _ in range(turns):
        mine.append(_turn_s(ours, x_ND))
        theirs += [_turn_s(plain, x_ND), _turn_s(plain, x_ND)]
        mine.append(_turn_s(ours, x_ND))
    return min(mine) / min(theirs) - 1


def _turn_s(module: nn.Module, x_ND: Tensor) -> float:
    if x_ND.is_cuda:
        timed: Any = torch.cuda.Event
        begin, end = (timed(enable_timing=True) for _ in range(2))
        begin.record()
        module(x_ND)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000
    began = time.process_time()
    module(x_ND)
    return time.process_time() - began
