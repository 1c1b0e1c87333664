"""The run `r` on four GPUs, and what it tells, written to a journal."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.builders.points import catalogue, point
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.admission import MOST_RUNS
from wattmesh.controller.journal.runs.run_nodes import HERE
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.reconfig.catalogue import ProbeEvidence, SwitchCost
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Order, Progress, Register, Transition

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
UID = 1000
A, B = Layout(dp_shard=2, tp=2), Layout(tp=2)


def after(seconds: float) -> datetime:
    """Give a moment after T0."""
    return T0 + timedelta(seconds=seconds)


SIMULATED = {"power_w": "simulated"}
PROBE = ProbeEvidence(moved=6.6e-5, allowed=2.1e-4, noise=5.3e-5, orders=1, computed_in="bfloat16")
CATALOGUE = catalogue(
    point("A", A, 1000.0, 1600.0, sources=SIMULATED),
    point("B", B, 550.0, 710.0, sources=SIMULATED, probe=PROBE),
    job="llm",
    tokens_total=100_000,
    switch=SwitchCost(),
    global_batch=0,
    seq_len=0,
    simulated=("power_w",),
)
PLAN = RunPlan(catalogue=CATALOGUE, deadline_after_s=300.0)


def register(
    journal: Journal,
    *,
    now: datetime = T0,
    uid: int = UID,
    plan: RunPlan = PLAN,
    most: int = MOST_RUNS,
    node: str = HERE,
    **changes: Any,
) -> None:
    """Register the run `r`."""
    values: dict[str, Any] = {
        "run": "r",
        "name": "llm",
        "incarnation": "i1",
        "attempt": 1,
        "layout": A,
        "ranks": (0, 1, 2, 3),
        "world_size": 4,
        "gpus": ("g0", "g1", "g2", "g3"),
        "tokens_total": 100_000,
        "boundary_every": 10,
        "capabilities": ("in_place", "parking"),
        "host": "node1",
    }
    message = Register(**(values | changes))
    journal.runs.register(message, owner_uid=uid, now=now, epoch=1, plan=plan, most=most, node=node)


def progress(
    journal: Journal, *, now: datetime, tokens: int, uid: int = UID, **changes: Any
) -> None:
    """Report progress of the run `r`."""
    values: dict[str, Any] = {
        "run": "r",
        "incarnation": "i1",
        "attempt": 1,
        "seq": tokens,
        "step": tokens // 100,
        "samples": tokens // 10,
        "tokens": tokens,
        "tokens_per_s": 1000.0,
        "loss": 2.5,
        "layout": A,
        "ranks": (0, 1, 2, 3),
        "boundary_every": 10,
    }
    journal.runs.progress(Progress(**(values | changes)), owner_uid=uid, now=now)


def order(epoch: int, switch_id: str = "p1", run: str = "r") -> Order:
    """Make an order to point B."""
    return Order(
        switch_id=switch_id,
        epoch=epoch,
        run=run,
        attempt=1,
        point="B",
        layout=B,
        ranks=(0, 1),
        not_before_step=1,
        valid_until_step=99,
    )


def put_order(journal: Journal, made: Order, now: datetime = T0) -> bool:
    """Write an intent row."""
    return journal.switches.order(
        made,
        from_point="A",
        requested_by="policy",
        reason="the grid is dirty.",
        predicted_g=0.5,
        switch_cost_g=0.1,
        now=now,
    )


def transition(state: SwitchState, switch_id: str = "p1", **changes: Any) -> Transition:
    """Make a reported step of a switch."""
    values: dict[str, Any] = {
        "run": "r",
        "incarnation": "i1",
        "attempt": 1,
        "switch_id": switch_id,
        "epoch": 1,
        "state": state,
        "step": 20,
        "elapsed_s": 1.0,
        "layout": B if state is SwitchState.CONFIRMED else None,
        "ranks": (0, 1),
        "evidence": {"total_s": 1.5} if state is SwitchState.CONFIRMED else {},
    }
    return Transition(**(values | changes))
