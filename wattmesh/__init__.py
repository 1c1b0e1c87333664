"""wattmesh: energy and carbon control for PyTorch training clusters.

The map:
    telemetry/     what is true now, with its unit and its age
    reconfig/      how a job changes shape without changing its mathematics
    policies/      what should be done: pure functions
    integrations/  one file per outside system
    controller/    when things happen, and remembering them
    migrations/    the journal's past shapes

Importing this package costs nothing: the names a training script uses (`observe`, `attach`,
`Session`, `State`, `Layout`, `Ranks`, `Written`, `mean_over_ranks`) are loaded on first touch, so
that the daemon, which shares the package, never meets torch, and neither does a script that is only
observed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wattmesh.reconfig.checkpoint.foreign import Written
    from wattmesh.reconfig.hook.observed import ObservedRun, observe
    from wattmesh.reconfig.hook.session import Session, attach
    from wattmesh.reconfig.launch.group import mean_over_ranks
    from wattmesh.reconfig.layout import Layout, Ranks
    from wattmesh.reconfig.position import Position
    from wattmesh.reconfig.state.state import State

__version__ = "0.1.0"

_LAZY = {
    "Layout": "wattmesh.reconfig.layout",
    "Ranks": "wattmesh.reconfig.layout",
    "Position": "wattmesh.reconfig.position",
    "Written": "wattmesh.reconfig.checkpoint.foreign",
    "ObservedRun": "wattmesh.reconfig.hook.observed",
    "Session": "wattmesh.reconfig.hook.session",
    "State": "wattmesh.reconfig.state.state",
    "attach": "wattmesh.reconfig.hook.session",
    "mean_over_ranks": "wattmesh.reconfig.launch.group",
    "observe": "wattmesh.reconfig.hook.observed",
}

__all__ = [
    "Layout",
    "ObservedRun",
    "Position",
    "Ranks",
    "Session",
    "State",
    "Written",
    "__version__",
    "attach",
    "mean_over_ranks",
    "observe",
]


def __getattr__(name: str) -> Any:
    """Load one of the hook's names on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
