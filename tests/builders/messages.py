"""Messages of a training run for the tests of the interface."""

from typing import Any

from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Finish, Heartbeat, Progress, Register, Transition

RUN = "6d1c9d0e-0000-4000-8000-000000000001"
A, B = Layout(dp_shard=2, tp=2), Layout(tp=2)

CATALOGUE = """\
[job]
name = "llama-8b"
tokens_total = 1000000
reference = "A"
release = "parked"
[switch]
layout_s = 1.0
layout_energy_j = 10
source = "measured"
[[point]]
id = "A"
gpus = 4
layout = { dp_shard = 2, tp = 2 }
tokens_per_s = 1000
power_w = 1600
equivalence = "exact"
evidence = "validated"
[[point]]
id = "B"
gpus = 2
layout = { tp = 2 }
tokens_per_s = 550
power_w = 710
equivalence = "numerical"
evidence = "validated"
"""

CLOCKED_CATALOGUE = """\
[job]
name = "llama-8b"
tokens_total = 1000000000
reference = "A"
release = "held"
[[point]]
id = "A"
gpus = 2
clock_mhz = 1980
layout = { dp_shard = 2 }
tokens_per_s = 1000
power_w = 1400
equivalence = "exact"
evidence = "validated"
[[point]]
id = "S"
gpus = 2
clock_mhz = 1200
layout = { dp_shard = 2 }
tokens_per_s = 800
power_w = 800
equivalence = "exact"
evidence = "validated"
"""
"""One layout of two GPUs at two clocks, 1980 and 1200 MHz."""


def register(**changes: Any) -> dict[str, Any]:
    """Introduce a run."""
    values: dict[str, Any] = {
        "run": RUN,
        "name": "llama-8b",
        "incarnation": "incarnation-1",
        "attempt": 1,
        "layout": A,
        "ranks": (0, 1, 2, 3),
        "world_size": 4,
        "tokens_total": 1_000_000,
        "boundary_every": 10,
        "capabilities": ("in_place", "parking"),
        "host": "node-1",
        "pid": 4711,
    }
    return Register(**values | changes).to_json()


def progress(**changes: Any) -> dict[str, Any]:
    """Report where training stands."""
    values: dict[str, Any] = {
        "run": RUN,
        "incarnation": "incarnation-1",
        "attempt": 1,
        "seq": 1,
        "step": 10,
        "samples": 80,
        "tokens": 1000,
        "tokens_per_s": 990.0,
        "loss": 4.2,
        "layout": A,
        "ranks": (0, 1, 2, 3),
        "boundary_every": 10,
    }
    return Progress(**values | changes).to_json()


def heartbeat(**changes: Any) -> dict[str, Any]:
    """Say that the launch lives."""
    values: dict[str, Any] = {
        "run": RUN,
        "incarnation": "incarnation-1",
        "attempt": 1,
        "phase": "training",
    }
    return Heartbeat(**values | changes).to_json()


def transition(switch_id: str, epoch: int, state: SwitchState, **changes: Any) -> dict[str, Any]:
    """Report one step of a switch."""
    values: dict[str, Any] = {
        "run": RUN,
        "incarnation": "incarnation-1",
        "attempt": 1,
        "switch_id": switch_id,
        "epoch": epoch,
        "state": state,
        "step": 20,
        "elapsed_s": 0.5,
    }
    return Transition(**values | changes).to_json()


def finish(**changes: Any) -> dict[str, Any]:
    """Report the end."""
    values: dict[str, Any] = {
        "run": RUN,
        "incarnation": "incarnation-1",
        "attempt": 1,
        "step": 100,
        "tokens": 1_000_000,
        "reason": "done",
    }
    return Finish(**values | changes).to_json()
