"""Asynchronous saves: on a group of their own, of the state as it was at the call."""

from typing import Any


def test_the_snapshot_is_the_state_of_the_call(said: dict[str, Any]) -> None:
    """Training went on meanwhile: sharded and plain tensors and values are those of the call."""
    found = said["asynchronous"]
    assert found["w"]
    assert found["v"] == [1.0, 1.0, 1.0]
    assert found["values"] == {"optim.param_groups.w.lr": 0.1}


def test_training_goes_on_while_it_writes(said: dict[str, Any]) -> None:
    """The default group carried other messages before the save had ended."""
    assert said["asynchronous"]["messages"] == 20
