"""What torchtitan's Trainer would do otherwise than under a session is refused before it begins."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torchtitan.components.checkpointer.dcp import CheckpointManager

from wattmesh.errors import InputInvalid
from wattmesh.integrations import torchtitan as titan
from wattmesh.integrations.torchtitan.configuration import refuse_other_beginning
from wattmesh.integrations.torchtitan.training import refuse_own_loop


class Theirs:
    """Stands for torchtitan's Trainer, which wants Triton to be imported."""

    __module__ = "torchtitan.trainer"

    def train(self) -> None:
        """Train."""


class OwnLoop(Theirs):
    """A class of a user's own."""

    __module__ = "job"

    def train(self) -> None:
        """Train otherwise."""


class OwnStep(Theirs):
    """One that keeps torchtitan's loop."""

    __module__ = "job"

    def train_step(self, data_iterator: Any) -> None:
        """Train otherwise."""


def configuration(dump_folder: Path, **checkpoint: Any) -> Any:
    """Make the part that is looked at."""
    return SimpleNamespace(
        dump_folder=str(dump_folder), checkpoint=CheckpointManager.Config(**checkpoint)
    )


def refused(folder: Path, trainer: type[Any] = Theirs, **checkpoint: Any) -> str:
    """Attach; give the sentence."""
    config = configuration(folder, **checkpoint)
    with pytest.raises(InputInvalid) as caught:
        titan.attach("run", trainer, config, checkpoint_dir=folder / "ck", device="cpu")
    return str(caught.value)


def test_a_loop_of_its_own_is_not_passed_over(tmp_path: Path) -> None:
    """It would not be called, and the run would be another one without a word."""
    assert "OwnLoop has a train of its own" in refused(tmp_path, OwnLoop)
    refuse_own_loop(Theirs)
    refuse_own_loop(OwnStep)


def test_weights_to_begin_with_are_not_passed_over(tmp_path: Path) -> None:
    """A run of fine-tuning would begin at random weights."""
    said = refused(tmp_path, enable=True, initial_load_path="/weights")
    assert "checkpoint.initial_load_path = /weights is not read" in said
    refuse_other_beginning(configuration(tmp_path, initial_load_path="/weights"), own_saves=True)


def test_a_run_that_torchtitan_began_is_not_begun_anew(tmp_path: Path) -> None:
    """Where torchtitan would go on from its own checkpoints; those of `own_saves` are the run's."""
    (tmp_path / "checkpoint" / "step-2").mkdir(parents=True)
    assert "the run would begin anew" in refused(tmp_path, enable=True)
    refuse_other_beginning(configuration(tmp_path, enable=True), own_saves=True)
    refuse_other_beginning(configuration(tmp_path, enable=True, folder="other"), own_saves=False)
    refuse_other_beginning(configuration(tmp_path), own_saves=False)
