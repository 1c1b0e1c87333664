"""Two ranks under DDP whose optimizers touch more than their own slots, bare and attached.

Four parts of one model, each with an optimizer of its own: one calls back after its step, one draws
random numbers, one counts in its class, and one is torch's AdamW under a hook of all optimizers.
Every rank writes, after each step, what its weights, streams and counts are to `rank-N.jsonl`.
"""

import copy
import hashlib
import json
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state import carried
from wattmesh.reconfig.state.optimizer import optimizers
from wattmesh.reconfig.state.state import State

CALLBACK, NOISY, COUNTING, HOOKED = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """How it is run; travels as JSON in the environment variable UNTOUCHED.

    Attributes:
        spoil: "" | "stand-in" (a copy of each optimizer is stepped at attach, as we once did) |
            "hooks" (they hear of the step that makes slots before a load).
    """

    folder: str
    out: str
    steps: int = 8
    attached: bool = True
    spoil: str = ""

    @classmethod
    def from_environment(cls) -> Self:
        """Read it."""
        return cls(**json.loads(os.environ["UNTOUCHED"]))

    def to_text(self) -> str:
        """Write it."""
        return json.dumps(asdict(self))


class Calling(torch.optim.SGD):
    """Calls back after each step, as for clamped or averaged weights."""

    def __init__(self, parameters: Iterator[nn.Parameter], after: Callable[[], None]) -> None:
        """Call `after`."""
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.after = after

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step and call."""
        super().step(closure)
        self.after()


class Noisy(torch.optim.SGD):
    """Adds noise of numpy's and python's."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step and draw."""
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for each in group["params"]:
                    each.add_(1e-3 * np.random.randn() + 1e-3 * random.random())


class Counting(torch.optim.SGD):
    """Its rate falls by a count that the class keeps."""

    total = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Count and step."""
        Counting.total += 1
        for group in self.param_groups:
            group["lr"] = 0.1 / Counting.total
        super().step(closure)


class Hook:
    """Hears of all optimizers' steps; decays one part after AdamW's."""

    def __init__(self) -> None:
        """Have heard of none."""
        self.calls = 0
        self.part: nn.Module | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Count and decay."""
        if isinstance(optimizer, torch.optim.AdamW) and self.part is not None:
            self.calls += 1
            decay(self.part)


def decay(part: nn.Module) -> None:
    """Shrink the weights."""
    with torch.no_grad():
        for each in part.parameters():
            each.mul_(0.99)


class Net(nn.Module):
    """Four parts beside each other."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 4)) for _ in "abcd")

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Add their losses, so that no part's weights are in another's gradient."""
        return torch.stack([part(x_BD).square().mean() for part in self.parts]).sum()


def stepped_stand_ins(state: State, layout: Layout) -> str:
    """What was asked once: a step of a copy over tiny parameters, and what it keeps."""
    for optimizer in state.optimizers:
        twin = object.__new__(type(optimizer))
        own = ("state", "param_groups", "step", "after")
        twin.__dict__.update(
            copy.deepcopy({key: each for key, each in vars(optimizer).items() if key not in own})
        )
        twin.__dict__.update({key: each for key, each in vars(optimizer).items() if key == "after"})
        twin.state = defaultdict(dict)
        tiny = nn.Parameter(torch.zeros(2))
        tiny.grad = torch.zeros(2)
        twin.param_groups = [{**optimizer.param_groups[0], "params": [tiny]}]
        with torch.random.fork_rng(devices=[]):
            type(optimizer).step(twin)
    return ""


@contextmanager
def spoiled(what: str) -> Iterator[None]:
    """Run without what is tested."""
    if what == "stand-in":
        carried.problem = stepped_stand_ins
    elif what == "hooks":
        optimizers.without_hooks = lambda optimizer: nullcontext()  # type: ignore[assignment, return-value]
    yield


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    options = Untouched.from_environment()
    rank, out = int(os.environ["RANK"]), Path(options.out)
    random.seed(5)
    np.random.seed(5)
    hook = Hook()
    register_optimizer_step_post_hook(hook)

    def build(layout: Layout, ranks: Ranks) -> State:
        torch.manual_seed(1)
        net = Net()
        hook.part = net.parts[HOOKED]
        wrapped = DistributedDataParallel(net)
        return State(
            modules=[wrapped],
            optimizers=[
                Calling(net.parts[CALLBACK].parameters(), lambda: decay(net.parts[CALLBACK])),
                Noisy(net.parts[NOISY].parameters(), lr=0.1),
                Counting(net.parts[COUNTING].parameters(), lr=0.1),
                torch.optim.AdamW(net.parts[HOOKED].parameters(), lr=0.01),
            ],
        )

    def train(state: State, step: int) -> float:
        generator = torch.Generator().manual_seed(10 * step + rank)
        loss: torch.Tensor = state.modules[0](torch.randn(8, 6, generator=generator))
        torch.autograd.backward(loss)
        for each in state.optimizers:
            each.step()
            each.zero_grad()
        with (out / f"rank-{rank}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step + 1, **_seen(state), "calls": hook.calls}) + "\n")
        return float(loss.detach())

    if not options.attached:
        dist.init_process_group("gloo")
        state = build(Layout(dp_replicate=2), None)  # type: ignore[arg-type]
        for step in range(options.steps):
            train(state, step)
        dist.barrier()
        return 0
    with (
        spoiled(options.spoil),
        attach(
            "untouched",
            build=build,
            probe=lambda state: 1.0,
            layout=Layout(dp_replicate=2),
            checkpoint_dir=options.folder,
            boundary_every=2,
            tokens_total=options.steps,
        ) as session,
    ):
        while not session.done:
            loss = train(session.state, session.position.step)
            session.report(tokens=1, samples=16, loss=loss)
            session.boundary()
    return 0


def _seen(state: State) -> dict[str, Any]:
    """Hashes of each part's weights, and of the streams."""
    (wrapped,) = state.modules
    assert isinstance(wrapped, DistributedDataParallel)
    parts = wrapped.module.parts
    told = [b"".join(each.detach().numpy().tobytes() for each in p.parameters()) for p in parts]
    streams = [
        repr(random.getstate()).encode(),
        repr(np.random.get_state(legacy=False)).encode(),
        torch.get_rng_state().numpy().tobytes(),
    ]
    return {
        "weights": [hashlib.sha256(each).hexdigest()[:16] for each in told],
        "streams": [hashlib.sha256(each).hexdigest()[:16] for each in streams],
    }
