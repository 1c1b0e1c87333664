"""A small job that trains through a script of switches, and can be meddled with after each.

It has what the checks look at: tensor and data parallel weights, moments, a stack of experts, a
dropout that is keyed by the sample, and one that draws from the process's own stream.
"""

import json
import os
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from wattmesh.reconfig.equivalence.checks.samples import merge
from wattmesh.reconfig.equivalence.gather import gather_gradients, gather_whole
from wattmesh.reconfig.equivalence.lab import Notes, train
from wattmesh.reconfig.equivalence.script import Script, turns_of
from wattmesh.reconfig.equivalence.shelf import write_whole
from wattmesh.reconfig.equivalence.watch import watch_masks
from wattmesh.reconfig.equivalence.whole import WholeState
from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State

WIDTH, BATCH, EXPERTS = 16, 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a launch does; travels as JSON in the environment variable LAB.

    Attributes:
        walk: numbers of `layouts`, in the order in which they are trained in.
        every: steps in each.
        meddle: by step: what is done to the state right after the switch there.
        at_load: by step: done to the state inside the session's load, in any layout but the first.
        shifted_rank: this rank trains on other samples than it should.
    """

    folder: str
    layouts: list[dict[str, Any]]
    walk: list[int]
    every: int = 2
    meddle: dict[str, str] = field(default_factory=dict)
    at_load: dict[str, str] = field(default_factory=dict)
    shifted_rank: int = -1


@dataclass(frozen=True, slots=True)
class Done:
    """One step."""

    loss: float
    tokens: int = BATCH * WIDTH
    samples: int = BATCH


class KeyedDropout(nn.Module):
    """Drops a fifth of every sample's features, chosen by (step, sample)."""

    def __init__(self) -> None:
        """Begin without samples."""
        super().__init__()
        self.step = 0
        self.samples: list[int] = []

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Drop; the mask is a function of the logical position alone."""
        masks = []
        for sample in self.samples:
            generator = torch.Generator().manual_seed(1_000_003 * self.step + sample)
            masks.append(torch.rand(x_BD.shape[1], generator=generator) >= 0.2)
        return x_BD * torch.stack(masks)


class Net(nn.Module):
    """Two linear layers around a stack of experts, each of which sees a part of the features."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH // EXPERTS, WIDTH // EXPERTS))
        self.keyed = KeyedDropout()

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map a batch."""
        y_BD = self.keyed(self.down(torch.tanh(self.up(x_BD))))
        parts = y_BD.unflatten(1, (EXPERTS, -1))
        return torch.einsum("bei,eij->bej", parts, self.experts).flatten(1)


class LabJob:
    """One rank."""

    def __init__(self, options: Options) -> None:
        """Prepare; nothing is built yet."""
        self.options = options
        self.rank = int(os.environ["RANK"])
        self.samples: dict[int, dict[int, int]] = {}
        self.keyed: dict[Hashable, bytes] = {}
        self.stream: dict[Hashable, bytes] = {}
        self.gradient_of_step = 1
        self.odd: list[str] = []
        self.out = Path(options.folder)

    def build(self, layout: Layout, ranks: Ranks) -> State:
        """Make the model; a rebuilt one starts from other weights, so that the load is tested."""
        mesh = init_device_mesh("cpu", (layout.dp_shard, layout.tp), mesh_dim_names=("dp", "tp"))
        torch.manual_seed(5 if not list(self.out.glob("ck/step-*")) else 77)
        net = Net().double()
        if layout.tp > 1:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(net, mesh["tp"], plan)
        fully_shard(net, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
        state = State(modules=[net], optimizers=[optimizer])
        first = Layout(**self.options.layouts[self.options.walk[0]])
        harm = self.options.at_load if layout != first else {}
        state.extra["after_load"] = AfterLoad(
            lambda: self._hurt(state, harm.get(str(state.position.step), ""))
        )
        state.parts.mesh = mesh
        state.parts.stream = nn.Dropout(0.2)
        return state

    def probe(self, state: State) -> float:
        """Loss of a fixed batch."""
        state.modules[0].eval()
        loss = self._mean(self._loss(state, 1 << 40, 0))
        state.modules[0].train()
        return loss

    def step(self, state: State) -> Done:
        """One optimizer step."""
        step = state.position.step + 1
        mine = self._mine(state, state.position.samples)
        layers = [("keyed", state.modules[0].get_submodule("keyed"))]
        with watch_masks(layers, mine, self.keyed, step=step):
            loss = self._loss(state, state.position.samples, step)
        with watch_masks([("stream", state.parts.stream)], mine, self.stream, step=step):
            state.parts.stream(torch.ones(len(mine), 64))
        torch.autograd.backward(loss)
        if step == self.gradient_of_step:
            found = gather_gradients(state)
            if self.rank == 0:
                write_whole(self.out / "gradient.npz", found)
        optimizer = state.optimizers[0]
        optimizer.step()
        optimizer.zero_grad()
        by_rank = group.gather(mine)
        self.samples[step] = merge(by_rank, copies=state.parts.mesh["tp"].size())
        return Done(self._mean(loss))

    def run(self) -> int:
        """Train through the script; rank 0 writes what was found."""
        options = self.options
        layouts = [Layout(**each) for each in options.layouts]
        script = Script(turns_of(options.walk, layouts, every=options.every))
        notes = Notes(meddle=self._meddle)
        with attach(
            "lab",
            build=self.build,
            probe=self.probe,
            layout=layouts[options.walk[0]],
            checkpoint_dir=self.out / "ck",
            boundary_every=options.every,
            tokens_total=options.every * len(options.walk) * Done(0).tokens,
            reporter=script,
        ) as session:
            notes.stepped = self._keep
            train(session, script, self.step, notes)
        if self.rank == 0:
            self._write(script, notes)
        (self.out / f"masks-{self.rank}.json").write_text(
            json.dumps([_hex(self.keyed), _hex(self.stream)])
        )
        return 0

    def _keep(self, state: State, step: int) -> None:
        """Gather the state after every step, in whatever layout; keep the last."""
        whole = gather_whole(state)
        self.odd += self._unlike_torch(state, whole)
        if self.rank == 0 and step == self.options.every * len(self.options.walk):
            write_whole(self.out / "state.npz", whole)

    def _unlike_torch(self, state: State, whole: WholeState) -> list[str]:
        """Names that torch's own gather gives other bits for: the oracle of ours. Collective."""
        found = []
        for name, parameter in state.modules[0].named_parameters():
            full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            mine = whole.arrays.get(f"param.{name}")
            if mine is not None and mine.tobytes() != full.detach().numpy().tobytes():
                found.append(name)
        return found

    def _write(self, script: Script, notes: Notes) -> None:
        found = {
            "losses": notes.losses,
            "round_trips": {step: asdict(each) for step, each in notes.round_trips.items()},
            "ends": script.ends(),
            "samples": self.samples,
            "unlike_torch": self.odd,
        }
        (self.out / "found.json").write_text(json.dumps(found))

    def _meddle(self, state: State) -> None:
        self._hurt(state, self.options.meddle.get(str(state.position.step), ""))

    def _hurt(self, state: State, how: str) -> None:
        if how:
            HARM[how](state)

    def _mine(self, state: State, first: int) -> list[int]:
        """Global sample ids of this rank."""
        mesh = state.parts.mesh["dp"]
        share = BATCH // mesh.size()
        first += mesh.get_local_rank() * share + (self.rank == self.options.shifted_rank)
        return list(range(first, first + share))

    def _loss(self, state: State, first: int, step: int) -> torch.Tensor:
        """Mean over this rank's samples; data parallel ranks have equally many."""
        mine = self._mine(state, first)
        rows = [
            torch.randn(WIDTH, generator=torch.Generator().manual_seed(each)).double()
            for each in mine
        ]
        x_BD = torch.stack(rows)
        keyed = state.modules[0].get_submodule("keyed")
        assert isinstance(keyed, KeyedDropout)
        keyed.step, keyed.samples = step, mine
        return nn.functional.mse_loss(state.modules[0](x_BD), torch.sin(x_BD.roll(1, 1)) * x_BD)

    def _mean(self, loss: torch.Tensor) -> float:
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()


class AfterLoad:
    """Extra state whose loading is the last thing that a load does: there harm can be done."""

    def __init__(self, act: Callable[[], None]) -> None:
        """Do `act` after a load."""
        self.act = act

    def state_dict(self) -> dict[str, Any]:
        """Have nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Everything else has been loaded."""
        self.act()


def _drop_moments(state: State) -> None:
    for slots in state.optimizers[0].state.values():
        slots["exp_avg"].zero_()
        slots["exp_avg_sq"].zero_()


def _count_on(state: State) -> None:
    for slots in state.optimizers[0].state.values():
        slots["step"] += 1


def _swap_experts(state: State) -> None:
    _reorder(state, "experts", [1, 0, 2, 3])


def _permute_rows(state: State) -> None:
    _reorder(state, "up.weight", [*range(1, 4 * WIDTH), 0])


def _lose_position(state: State) -> None:
    state.position = replace(state.position, step=state.position.step + 1)


def _reorder(state: State, name: str, order: list[int]) -> None:
    """Put rows of a parameter into another order, however it is sharded."""
    with torch.no_grad():
        parameter = state.modules[0].get_parameter(name)
        assert isinstance(parameter, DTensor)
        whole = parameter.full_tensor()[order]
        spoilt = torch.distributed.tensor.distribute_tensor(
            whole,
            parameter.device_mesh,
            [torch.distributed.tensor.Replicate()] * parameter.device_mesh.ndim,
        ).redistribute(parameter.device_mesh, parameter.placements)
        parameter.to_local().copy_(spoilt.to_local())


HARM: dict[str, Callable[[State], None]] = {
    "moments dropped": _drop_moments,
    "step off by one": _count_on,
    "two experts swapped": _swap_experts,
    "rows permuted": _permute_rows,
    "position lost": _lose_position,
}


def _hex(masks: dict[Hashable, bytes]) -> list[list[Any]]:
    return [[list(key), bits.hex()] for key, bits in masks.items() if isinstance(key, tuple)]


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    return LabJob(Options(**json.loads(os.environ["LAB"]))).run()
