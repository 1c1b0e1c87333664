"""A session that stands at one step, around real routers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from wattmesh.reconfig.layout import Layout


class Standing:
    """A session that stands at one step, for what cannot be trained in one process."""

    def __init__(self, folder: Path, layout: Layout, *routers: nn.Module) -> None:
        """Lead a generation in a layout."""
        self.state = cast(Any, SimpleNamespace(modules=routers))
        self.generation = cast(Any, SimpleNamespace(layout=layout))
        self.leads, self.run = True, "r"
        self.position = cast(Any, SimpleNamespace(step=0))
        self.routing_file = folder / "routing.json"
        self._calls: list[Any] = []

    def after_save_step(self, call: Any) -> None:
        """Keep it."""
        self._calls.append(call)

    def save_step(self) -> None:
        """End one."""
        for call in self._calls:
            call()

    def train(self, save_steps: int = 2) -> None:
        """Let routers choose between save steps."""
        for _ in range(save_steps):
            self.save_step()
            self.position.step += 1
            for each in self.state.modules:
                each(torch.ones(len(each.bias_X), 4))
