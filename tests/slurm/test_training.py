"""A training on a real Slurm: layouts, sizes, sleep, and the losses of a run left alone."""

from collections.abc import Mapping
from pathlib import Path

from tests.daemon.waiting import wait_for
from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, DP2_TP2, DP4, worst_difference
from tests.slurm.cluster import Cluster
from tests.slurm.jobs.training import Training
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import RESIZES, SUSPENDS, SwitchMode

FOUR, TWO = (0, 1, 2, 3), (0, 1)
HOUR_S = 3600.0


def test_a_training_moves_through_layouts_sizes_and_sleep_with_the_same_losses(
    slurm: Cluster,
    tmp_path: Path,
    places: Path,
    ranks: Path,
    undisturbed: Mapping[int, float],
) -> None:
    """Four ranks on two nodes, another layout there, two on one, asleep, woken as four on two.

    The order to wake, an hour before the alarm and in another size, is fetched by a small job that
    the run leaves while it sleeps. The daemon hears of every move that it was carried out and
    proven.
    """
    watched = "--watch-asleep --watcher=--mem=100"
    moved = Training(slurm, tmp_path / "moved", ranks, places / "d.sock", more=watched)
    wishes = [
        Wish(layout=DP2_TP2, ranks=FOUR, at=10, mode=SwitchMode.RESTART),
        Wish(layout=DP2, ranks=TWO, at=20, mode=SwitchMode.RESIZE),
        Wish(layout=DP2, ranks=TWO, at=30, mode=SwitchMode.SUSPEND, wakes_in_s=HOUR_S),
        Wish(layout=DP4, ranks=FOUR, at=30, mode=SwitchMode.RESUME),
    ]
    with FakeDaemon(places / "d.sock", moved.out, wishes) as daemon:
        moved.submit()
        wait_for(
            lambda: any(each.reason == "suspended" for each in daemon.heard.finishes),
            "that it sleeps",
        )
        moved.wait_until()
    told = (moved.folder / "watch.out").read_text()
    assert "the run is woken: the test asks for it" in told, told
    assert worst_difference(moved.losses(), undisturbed) <= 1e-5
    plans = dict.fromkeys(each.switch_id for each in daemon.heard.transitions)
    assert [daemon.states(plan)[-1] for plan in plans] == [SwitchState.CONFIRMED] * len(wishes)
    first, *_ = daemon.heard.registers
    assert {SUSPENDS, RESIZES} <= set(first.capabilities)
    sizes = [each.world_size for each in daemon.heard.registers]
    assert sizes == [4, 4, 2, 4]
    assert len({each.scheduler_key for each in daemon.heard.registers}) == 3
    assert [each.reason for each in daemon.heard.finishes][-2:] == ["suspended", "done"]
