"""Groups stay for a switch on the same ranks and mesh, where `build` made them to be reused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, Run, Zygote, worst_difference
from tests.hook.switches.test_switch import GOOD
from tests.hook.tiny import Fault
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.switch_spend import spend_of
from wattmesh.reconfig.wire.messages import Transition

Undisturbed = Callable[[int, str], dict[int, float]]

FINE = Layout(dp_shard=2, micro_batch=1)
"""The mesh of DP2, with another option."""

WISHES = [
    Wish(layout=FINE, ranks=(0, 1), at=10),
    Wish(layout=DP2, ranks=(0, 1), at=15),
    Wish(layout=FINE, ranks=(1, 0), at=20),
]
WAITS = {str(wish.at): f"order-{n + 1}" for n, wish in enumerate(WISHES)}


def confirmed(daemon: FakeDaemon) -> list[Transition]:
    """The first word of every switch that stands; a later one only adds its pace."""
    last: dict[str, Transition] = {}
    for each in daemon.heard.transitions:
        if each.state is SwitchState.CONFIRMED:
            last.setdefault(each.switch_id, each)
    return list(last.values())


@pytest.mark.parametrize("reuses", [True, False])
def test_groups_stay_on_the_same_ranks_and_mesh(
    zygote: Zygote,
    tmp_path: Path,
    socket_path: Path,
    undisturbed: Undisturbed,
    reuses: bool,
) -> None:
    """Not for ranks in another order; in the twin `build` makes its own.

    The losses are those of a run that was never switched, and no descriptor or thread is left over.
    Every switch tells what it spent.
    """
    run = Run(
        zygote, tmp_path, 2, steps=24, boundary_every=5, wait_for=WAITS, reuses=reuses
    ).with_daemon(socket_path)
    with FakeDaemon(socket_path, run.out, WISHES) as daemon:
        assert run.once() == 0, run.log()
    told = confirmed(daemon)
    kept = [each.evidence.get("kept") for each in told]
    assert kept == (["groups and compiled code"] * 2 if reuses else [None] * 2) + [None]
    assert worst_difference(run.losses(), undisturbed(24, "float32")) <= 1e-5
    assert daemon.states() == GOOD * 3
    spent = [spend_of(each.evidence, "A", "B") for each in told]
    assert all(each is not None and each.state_bytes > 10_000 for each in spent), told
    lines = {line["step"]: line for line in run.lines()}
    for resource in ("files", "threads"):
        assert abs(lines[19][resource] - lines[14][resource]) <= 2, resource


def test_a_switch_that_fails_on_kept_groups_goes_back_on_new_ones(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """One rank raises while its peer waits in the groups that stayed."""
    fault = Fault(rank=1, at="verify", what="raise", after_step=10)
    run = Run(
        zygote,
        tmp_path,
        2,
        steps=20,
        boundary_every=5,
        wait_for={"10": "order-1"},
        reuses=True,
        fault=fault,
    ).with_daemon(socket_path)
    with FakeDaemon(socket_path, run.out, WISHES[:1]) as daemon:
        assert run.once() == 0, run.log()
    assert daemon.states()[-2:] == [SwitchState.ROLLING_BACK, SwitchState.ROLLED_BACK]
    assert daemon.heard.transitions[-1].evidence.get("kept") == "groups and compiled code"
    assert worst_difference(run.losses(), undisturbed(20, "float32")) <= 1e-5
