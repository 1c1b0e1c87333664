"""Switches that go well: the same training run in another layout, losses equal."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, DP2_TP2, DP4, ONE, TP2, Run, Zygote, worst_difference
from wattmesh.reconfig.switch import SwitchState

Undisturbed = Callable[[int, str], dict[int, float]]

ALLOWED = {"float32": 1e-5, "float64": 1e-12}

GOOD = [
    SwitchState.ANNOUNCED,
    SwitchState.CHECKPOINTING,
    SwitchState.REBUILDING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_four_two_four_ranks_in_place(
    zygote: Zygote,
    tmp_path: Path,
    socket_path: Path,
    undisturbed: Undisturbed,
    dtype: str,
) -> None:
    """A run goes 4 -> 2 -> 4 -> 4 ranks with parking, and its losses do not move."""
    wishes = [
        Wish(layout=TP2, ranks=(0, 1), at=10),
        Wish(layout=DP4, ranks=(0, 1, 2, 3), at=20),
        Wish(layout=DP2_TP2, ranks=(3, 2, 1, 0), at=30),
    ]
    run = Run(
        zygote,
        tmp_path,
        4,
        layout=DP2_TP2,
        steps=40,
        boundary_every=10,
        dtype=dtype,
        wait_for={"10": "order-1", "20": "order-2", "30": "order-3"},
    ).with_daemon(socket_path)
    with FakeDaemon(socket_path, run.out, wishes) as daemon:
        assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2 tp2", "tp2", "dp4", "dp2 tp2"]
    assert worst_difference(run.losses(), undisturbed(40, dtype)) <= ALLOWED[dtype]
    assert daemon.states() == GOOD * 3
    last = daemon.heard.transitions[-1]
    assert {"probe_before", "probe_after", "save_s", "teardown_s", "total_s"} <= set(last.evidence)
    assert last.evidence["digest_before"] == last.evidence["digest_after"]
    assert daemon.heard.finishes[-1].reason == "done"
    assert [state for state, _, _ in daemon.paces()] == [SwitchState.CONFIRMED] * 3
    assert all(at_pace_s > total_s > 0 for _, total_s, at_pace_s in daemon.paces())
    # Each leaves one line in the training log, of all ranks together: who leads says it.
    told = [
        line.partition(" ")[2]
        for line in run.log().splitlines()
        if re.search(r"reconfig\.(?!client)", line)
    ]
    number = r"\d+\.\d\d s|(equal to \de-\d+|bitwise equal) \(\de-\d+ allowed\)"
    moves = [re.sub(number, "~", line) for line in told]
    assert moves == [
        f"wattmesh.reconfig.hook.rank_runner switched from {old} to {new} in place at step {step} "
        f"in ~. Why: the test asks for it. Proof: {ranks} hold what was saved, probe loss ~."
        for old, new, step, ranks in (
            ("dp2 tp2", "tp2", 10, "2 ranks"),
            ("tp2", "dp4", 20, "4 ranks"),
            ("dp4", "dp2 tp2", 30, "4 ranks"),
        )
    ]


def test_any_subset_of_ranks_may_train(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Global rank 0 is parked and returns; what others do meanwhile is told and ordered by it."""
    wishes = [
        Wish(layout=TP2, ranks=(1, 2), at=10),
        Wish(layout=ONE, ranks=(2,), at=15),
        Wish(layout=DP2, ranks=(2, 0), at=20),
    ]
    run = Run(
        zygote,
        tmp_path,
        3,
        steps=30,
        boundary_every=5,
        wait_for={"10": "order-1", "15": "order-2", "20": "order-3"},
        pace_s=0.05,
    ).with_daemon(socket_path)
    with FakeDaemon(socket_path, run.out, wishes) as daemon:
        assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "tp2", "1 rank", "dp2"]
    assert worst_difference(run.losses(), undisturbed(30, "float32")) <= 1e-5
    assert daemon.states() == GOOD * 3
    ranks = {each.ranks for each in daemon.heard.progress}
    assert {(1, 2), (2,)} <= ranks
    seqs = [each.seq for each in daemon.heard.progress]
    assert seqs == sorted(set(seqs))
    assert [each.reason for each in daemon.heard.finishes] == ["done"]


def test_switching_back_and_forth_leaks_nothing(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """Open files and threads of a rank are the same each time it is back in a layout."""
    wishes = [
        Wish(layout=TP2 if n % 2 else DP2, ranks=(0, 1) if n % 2 else (1, 0), at=2 * n + 2)
        for n in range(1, 7)
    ]
    # Not at the first save: that one waits for the disk, and leaves no staging areas.
    waits = {str(2 * n + 2): f"order-{n}" for n in range(1, 7)}
    run = Run(zygote, tmp_path, 2, steps=16, boundary_every=2, wait_for=waits)
    run.with_daemon(socket_path)
    with FakeDaemon(socket_path, run.out, wishes) as daemon:
        assert run.once() == 0, run.log()
    assert len(run.layouts()) == 7, (run.layouts(), daemon.states(), run.log())
    tp2 = [line for line in run.lines() if line["layout"] == "tp2" and line["step"] % 4 == 1]
    assert len(tp2) == 3
    # The daemon client may be in the middle of a call: one socket and one timer come and go.
    for resource, passing in (("files", 2), ("threads", 2), ("meshes", 0)):
        counts = [line[resource] for line in tp2]
        assert abs(counts[-1] - counts[0]) <= passing, (resource, counts)
