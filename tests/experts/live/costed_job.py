"""A job of two ranks that asked for expert costs; each rank writes what it trained and was told."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from wattmesh.integrations.pytorch.experts.costs import hand_to
from wattmesh.integrations.pytorch.experts.paired_probe import paired_probe
from wattmesh.integrations.pytorch.experts.router import EnergyRouter
from wattmesh.reconfig.client import cost_client
from wattmesh.reconfig.hook.session import Session, attach
from wattmesh.reconfig.launch.failures.deadlines import Deadlines
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.wire.experts import ExpertCostScores

WIDTH, EXPERTS, STEPS, EVERY = 8, 5, 12, 3
GPUS = ("GPU-a", "GPU-b")
HELD = ((0, 1, 2), (3, 4))
"""Five experts on two GPUs: the number need not divide."""
PATIENCE_S = 60.0


class Mixture(nn.Module):
    """A router and one matrix for each expert."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        mode, rate = ("tilt", 1e-2) if "MEASURES" in os.environ else ("dual", 1e-3)
        self.router = EnergyRouter(WIDTH, EXPERTS, 2, mode=mode, bias_rate=rate)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 3)

    def forward(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Mix two experts for each token."""
        chosen_NP, weights_NP, _ = self.router(x_ND)
        y_NPD = torch.einsum("nd,npde->npe", x_ND, self.experts[chosen_NP])
        mixed_ND: torch.Tensor = (weights_NP.unsqueeze(-1) * y_NPD).sum(1)
        return mixed_ND


def router_of(state: State) -> EnergyRouter:
    """The router of a state."""
    mixture = state.modules[0]
    assert isinstance(mixture, Mixture)
    return mixture.router


class CostedJob:
    """One rank."""

    def __init__(self) -> None:
        """Read what the test wants."""
        self.rank = int(os.environ["RANK"])
        self.out = Path(os.environ["OUT"])
        self.asks: bool = json.loads(os.environ["ASKS"])
        self.steps = int(os.environ.get("STEPS", STEPS))
        self.every = int(os.environ.get("SAVE_EVERY", EVERY))
        self.awaited: dict[str, int | str] = json.loads(os.environ.get("AWAITED", "{}"))
        self.told: list[Any] = []
        self.worse_from = int(os.environ.get("WORSE_FROM", "0"))
        self.measure = paired_probe(self.probe, lambda state: [router_of(state)])
        self.swaps_from = int(os.environ.get("SWAPS_FROM", "1000"))
        self.by_expert = hand_to(
            lambda state: [router_of(state)],
            lambda state: self.own(state.position.step),
            experts=EXPERTS,
            gpu=GPUS[self.rank],
        )
        self.holders, self.scores = self.by_expert.holders, self.by_expert.scores
        # A function of a job's own, or what hands on by expert.
        self.take = (self.called if "PLAIN" in os.environ else self) if self.asks else None

    def own(self, step: int) -> Sequence[int]:
        """The experts of this rank, which may be the other one's from a step on."""
        if dist.get_world_size() == 1:
            return range(EXPERTS)
        return HELD[self.rank if step < self.swaps_from else 1 - self.rank]

    def hand(
        self, state: State, costs: ExpertCostScores, scores: tuple[float, ...], reason: str
    ) -> None:
        """Note what is handed on."""
        self.told.append([state.position.step, costs.version])
        self.by_expert.hand(state, costs, scores, reason)

    def called(self, state: State, costs: ExpertCostScores) -> None:
        """Do the same as a plain function."""
        self.told.append([state.position.step, costs.version])
        self.by_expert(state, costs)

    def __call__(self, state: State, costs: ExpertCostScores) -> None:
        """Never called, as costs are handed on by expert."""
        raise AssertionError

    def build(self, layout: Layout, ranks: Ranks) -> State:
        """The same model on both ranks."""
        torch.manual_seed(3)
        model = Mixture().double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        return State(modules=[model], optimizers=[optimizer])

    def loss(self, state: State, step: int) -> torch.Tensor:
        """Of a batch that the step chooses."""
        generator = torch.Generator().manual_seed(step)
        x_ND = torch.randn(64, WIDTH, generator=generator, dtype=torch.float64)
        return nn.functional.mse_loss(state.modules[0](x_ND), torch.sin(x_ND.roll(1, 1)))

    def probe(self, state: State) -> float:
        """Loss of a fixed batch."""
        with torch.no_grad():
            return float(self.loss(state, 10_000))

    def run(self) -> int:
        """Train to the end."""
        with attach(
            "costed",
            build=self.build,
            probe=self.probe,
            layout=Layout(dp_replicate=2),
            checkpoint_dir=self.out.parent / "ck",
            boundary_every=self.every,
            tokens_total=self.steps * 64,
            gpu_uuid=GPUS[self.rank],
            deadlines=Deadlines(leave_s=5.0),
            expert_costs=self.take,
        ) as session:
            while not session.done:
                self.step(session)
        return 0

    def step(self, session: Session) -> None:
        """Train one step, wait for what the test awaits before its boundary, and write a line."""
        # No tensor of the state may be held over the boundary: a switch frees them.
        loss = self.train(session)
        step = session.position.step
        self.wait(session, self.awaited.get(str(step)))
        session.boundary()
        line = {
            "step": step,
            "loss": loss,
            "told": self.told,
            "lean": [] if session.done else router_of(session.state).lean_X.tolist(),
        }
        with (self.out / f"lines-{self.rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def train(self, session: Session) -> float:
        """Train, count and report."""
        state = session.state
        router, optimizer = router_of(state), state.optimizers[0]
        loss = self.loss(state, state.position.step)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        counts_X = router.counts_X.clone()
        router.rebalance(counts_X)
        own = self.own(state.position.step)
        session.count_expert_tokens(counts_X[list(own)], 0.25, paired=self.pair(state))
        told = float(loss.detach())
        session.report(tokens=64, samples=64, loss=told)
        return told

    def pair(self, state: State) -> tuple[float, float] | None:
        """Measure a pair where the test wants that, worse by a tenth from one of its steps on."""
        if "MEASURES" not in os.environ:
            return 1.01, 1.0
        pair = self.measure(state)
        worse = pair is not None and 0 < self.worse_from <= state.position.step
        return (1.1 * pair[1], pair[1]) if pair is not None and worse else pair

    def wait(self, session: Session, version: int | str | None) -> None:
        """Wait until the client has left these costs (-1: that there are none), or for a mark."""
        until = time.monotonic() + PATIENCE_S
        store = session._job.launch_store
        while version is not None:
            left = store.peek(cost_client.COSTS_KEY)
            if isinstance(version, str):
                there = (self.out / version).exists()
            else:
                there = (left or {"version": -1})["version"] == version
            if there:
                return
            if time.monotonic() > until:
                raise TimeoutError(f"version {version} was not left, but {left}")
            time.sleep(0.01)


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    vars(cost_client)["EVERY_S"] = 0.05
    return CostedJob().run()
