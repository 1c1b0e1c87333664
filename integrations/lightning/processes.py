"""The ranks of the session, as Lightning asks for them: its cluster environment and launcher.

Invariant: Lightning finds the process group that the session made, and makes or ends none.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

ROOTS = ("lightning.pytorch", "pytorch_lightning")
"""The two names of one package."""


class FitPrepared(BaseException):
    """Leaves `Trainer.fit` where all is prepared and nothing is trained."""


def root_of(trainer: Any) -> str:
    """Return the package that a trainer's class comes from; "" when it is none of Lightning's."""
    modules = [kind.__module__ for kind in type(trainer).__mro__]
    return next((root for root in ROOTS if any(m.startswith(root + ".") for m in modules)), "")


def part(trainer: Any, name: str) -> Any:
    """Return a module of the package that a trainer's class comes from, as `trainer.call`."""
    return importlib.import_module(f"{root_of(trainer)}.{name}")


class GroupEnvironment:
    """A cluster environment whose ranks are those of the session's process group."""

    creates_processes_externally = True

    def __init__(self, launched: Any) -> None:
        """Know the environment that Lightning found: places on nodes do not change."""
        self._launched = launched

    @property
    def main_address(self) -> str:
        """Never asked for: the process group is there."""
        return "localhost"

    @property
    def main_port(self) -> int:
        """Never asked for: the process group is there."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Only the session takes it."""
        return False

    def world_size(self) -> int:
        """Ranks of the present layout."""
        return dist.get_world_size()

    def global_rank(self) -> int:
        """This process's rank in the present layout."""
        return dist.get_rank()

    def set_world_size(self, size: int) -> None:
        """Not Lightning's to set."""

    def set_global_rank(self, rank: int) -> None:
        """Not Lightning's to set."""

    def local_rank(self) -> int:
        """This process's place on its node: its device."""
        return int(self._launched.local_rank())

    def node_rank(self) -> int:
        """This process's node."""
        return int(self._launched.node_rank())

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """The layout says how many ranks there are."""

    def teardown(self) -> None:
        """Nothing was made."""


class SessionLauncher:
    """Runs what Lightning launches, in this process; `fit` may be left once it is prepared."""

    is_interactive_compatible = False

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any, **named: Any) -> Any:
        """Call it."""
        del trainer
        try:
            return function(*args, **named)
        except FitPrepared:
            return None

    def kill(self, signum: int) -> None:
        """No process was started."""


def take_group(trainer: Any, data_parallel: int, tensor_parallel: int) -> None:
    """Have a trainer that was just made train on the session's ranks."""
    strategy, connector = trainer.strategy, trainer._accelerator_connector
    environment = GroupEnvironment(strategy.cluster_environment)
    strategy.cluster_environment = connector.cluster_environment = environment
    strategy._launcher = SessionLauncher()
    strategy._data_parallel_size = data_parallel
    strategy._tensor_parallel_size = tensor_parallel
    # Its answer to SIGTERM is a broadcast inside the handler; the session saves and ends.
    trainer._signal_connector.register_signal_handlers = _leave_signals


def _leave_signals() -> None:
    """Register none."""
