"""Walks, scripts and what is kept on disk; and what of the library a daemon may load."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.processes import loaded_after
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.equivalence.script import (
    Script,
    Turn,
    every_ordered_pair,
    random_walk,
    turns_of,
)
from wattmesh.reconfig.equivalence.shelf import read_whole, write_whole
from wattmesh.reconfig.equivalence.whole import WholeState, round_trip
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Progress, SwitchMode

LAYOUTS = [Layout(), Layout(dp_shard=2), Layout(tp=4)]


@given(st.integers(2, 14))
def test_a_walk_takes_every_ordered_pair_once(count: int) -> None:
    """Each place to each other place, in one go, and back to where it began."""
    walk = every_ordered_pair(count)
    pairs = list(itertools.pairwise(walk))
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(count) if a != b]
    assert walk[0] == walk[-1] == 0


def test_a_walk_needs_two_places() -> None:
    """One layout has no pairs."""
    with pytest.raises(InputInvalid, match="two layouts"):
        every_ordered_pair(1)


def test_a_random_walk_is_a_function_of_its_seed() -> None:
    """It never stays, and comes out the same again."""
    walk = random_walk(5, 50, seed=3)
    assert len(walk) == 51
    assert all(a != b for a, b in itertools.pairwise(walk))
    assert walk == random_walk(5, 50, seed=3) != random_walk(5, 50, seed=4)


def progress(step: int, attempt: int = 1) -> Progress:
    """What a job reports before a boundary."""
    return Progress(
        run="r",
        incarnation="i",
        attempt=attempt,
        seq=step,
        step=step,
        samples=0,
        tokens=0,
        tokens_per_s=0.0,
        loss=None,
        layout=LAYOUTS[0],
        ranks=(0,),
        boundary_every=2,
        checkpoint_step=0,
        checkpoint_digest="",
    )


def test_a_script_orders_only_what_is_due_now() -> None:
    """Before the first report, and at other steps, there is no order; a new launch may go on."""
    script = Script(turns_of([0, 1, 2], LAYOUTS, every=2))
    assert script.orders().order is None
    script.progress(progress(1))
    assert script.orders().order is None
    script.progress(progress(4, attempt=7))
    order = script.orders().order
    assert order is not None
    assert (order.layout, order.ranks) == (LAYOUTS[2], (0, 1, 2, 3))
    assert (order.not_before_step, order.valid_until_step, order.attempt) == (4, 4, 7)
    assert order.mode is SwitchMode.IN_PLACE


def test_a_script_switches_by_restart_when_asked() -> None:
    """So that a long script can be done in several launches."""
    script = Script([Turn(step=2, layout=LAYOUTS[1])], restart=lambda: True)
    script.progress(progress(2))
    order = script.orders().order
    assert order is not None
    assert order.mode is SwitchMode.RESTART


def test_a_state_on_disk_is_the_same_state(tmp_path: Path) -> None:
    """Bits, dtypes and settings come back; the twin with one other bit does not pass."""
    whole = WholeState(
        arrays={"a.b": np.array([[1.5, np.nan]]), "n": np.array(3), "empty": np.zeros((0, 2))},
        dtypes={"a.b": "torch.float64", "n": "torch.int64", "empty": "torch.float64"},
        plain={"lr": "0.1"},
    )
    write_whole(tmp_path / "state.npz", whole)
    assert round_trip(whole, read_whole(tmp_path / "state.npz")).ok
    whole.arrays["a.b"][0, 0] += 1e-15
    assert not round_trip(whole, read_whole(tmp_path / "state.npz")).ok


def test_the_pure_checks_load_no_torch() -> None:
    """`configs validate` may judge what a job found; gathering is the job's."""
    checks = (f"checks.{name}" for name in ("samples", "masks", "ragged", "trials", "seeds"))
    pure = ("verdict", "whole", *checks)
    names = (*pure, "script", "shelf")
    code = "\n".join(f"import wattmesh.reconfig.equivalence.{name}" for name in names)
    assert "torch" not in loaded_after(code)
    assert "torch" in loaded_after("import wattmesh.reconfig.equivalence.gather")
