"""A real job, switched by a script: the checks hold, and see what is done behind its back."""

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.equivalence.job import BATCH, Options
from tests.hook.harness import Zygote
from wattmesh.reconfig.equivalence.checks.masks import same_masks
from wattmesh.reconfig.equivalence.checks.samples import Samples, same_samples
from wattmesh.reconfig.equivalence.shelf import read_whole
from wattmesh.reconfig.equivalence.whole import (
    WholeState,
    close_curves,
    close_gradients,
    close_states,
)

LAYOUTS: list[dict[str, Any]] = [{}, {"dp_shard": 2}, {"tp": 2}, {"dp_shard": 2, "tp": 2}]
WALK = [1, 3, 2, 0, 3, 1]
STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a launch wrote."""

    losses: dict[int, float]
    round_trips: dict[int, dict[str, Any]]
    ends: list[list[Any]]
    samples: Samples
    unlike_torch: list[str]
    keyed: dict[Hashable, bytes]
    stream: dict[Hashable, bytes]
    state: WholeState
    gradient: WholeState


Launch = Callable[..., Found]


@pytest.fixture(scope="session")
def launch(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Launch the job and read what it found; equal options are launched once."""
    known: dict[str, Found] = {}

    def run(**options: Any) -> Found:
        name = json.dumps(options, sort_keys=True)
        if name not in known:
            folder = tmp_path_factory.mktemp("lab")
            given = Options(folder=str(folder), layouts=LAYOUTS, **options)
            ranks = 1 if given.walk == [0] else 4
            text = json.dumps({key: getattr(given, key) for key in given.__slots__})
            number = zygote.start(ranks, {"LAB": text}, folder, "tests.equivalence.job:main")
            status = zygote.wait(number)
            logs = sorted(folder.glob("rank-*.log"))
            assert status == 0, "\n".join(each.read_text() for each in logs)
            known[name] = _read(folder)
        return known[name]

    return run


def _read(folder: Path) -> Found:
    found = json.loads((folder / "found.json").read_text())
    masks: list[dict[Hashable, bytes]] = [{}, {}]
    for path in sorted(folder.glob("masks-*.json")):
        for into, rows in zip(masks, json.loads(path.read_text()), strict=True):
            into.update({tuple(key): bytes.fromhex(bits) for key, bits in rows})
    return Found(
        losses={int(step): loss for step, loss in found["losses"].items()},
        round_trips={int(step): each for step, each in found["round_trips"].items()},
        ends=found["ends"],
        samples={
            int(step): {int(each): count for each, count in ids.items()}
            for step, ids in found["samples"].items()
        },
        unlike_torch=found["unlike_torch"],
        keyed=masks[0],
        stream=masks[1],
        state=read_whole(folder / "state.npz"),
        gradient=read_whole(folder / "gradient.npz"),
    )


@pytest.fixture(scope="session")
def alone(launch: Launch) -> Found:
    """One rank that never switches."""
    return launch(walk=[0], every=STEPS)


@pytest.fixture(scope="session")
def switched(launch: Launch) -> Found:
    """Four ranks that walk through four layouts."""
    return launch(walk=WALK)


def test_a_switched_run_trains_the_same_model(alone: Found, switched: Found) -> None:
    """V1 at every switch; V2 on losses and on the last state, in fp64."""
    assert [state for _, state, _ in switched.ends] == ["confirmed"] * 5
    assert sorted(switched.round_trips) == [2, 4, 6, 8, 10]
    assert {each["measured"] for each in switched.round_trips.values()} == {0}
    curves = close_curves(switched.losses, alone.losses)
    assert curves.ok, curves.sentence
    states = close_states(switched.state, alone.state)
    assert states.ok, states.sentence
    assert len(switched.state.arrays) == 3 + 3 * 3


def test_a_gather_is_what_torch_gathers(switched: Found) -> None:
    """In every layout of the walk, ours against torch's own `full_tensor`, bit for bit."""
    assert switched.unlike_torch == []


def test_the_first_gradients_agree(alone: Found, switched: Found) -> None:
    """V7: from one state, on two ranks and on one."""
    found = close_gradients(switched.gradient.arrays, alone.gradient.arrays, dtype="float64")
    assert found.ok, found.sentence
    assert len(alone.gradient.arrays) == 3


def test_every_sample_is_consumed_once(alone: Found, switched: Found) -> None:
    """V3: against the other run, and against what the position says."""
    assert same_samples(switched.samples, alone.samples).ok
    expected = {
        step: dict.fromkeys(range(BATCH * (step - 1), BATCH * step), 1)
        for step in range(1, STEPS + 1)
    }
    assert same_samples(switched.samples, expected).ok


def test_masks_follow_the_sample_only_where_they_are_keyed(alone: Found, switched: Found) -> None:
    """V4 holds for a dropout keyed by the sample; its sabotaged twin is torch's own."""
    assert same_masks(switched.keyed, alone.keyed).ok
    assert len(alone.keyed) == STEPS * BATCH
    assert not same_masks(switched.stream, alone.stream).ok


HARMS = ["moments dropped", "step off by one", "two experts swapped", "rows permuted"]


def test_harm_behind_the_sessions_back_is_seen(launch: Launch, alone: Found) -> None:
    """Sabotaged twins: the round trip after each kind of harm fails, and so do losses and state."""
    harmed = launch(walk=WALK, meddle=dict(zip(("2", "4", "6", "8"), HARMS, strict=True)))
    measured = [harmed.round_trips[step]["measured"] for step in (2, 4, 6, 8, 10)]
    assert measured == [6, 3, 1, 1, 0]
    assert not close_curves(harmed.losses, alone.losses).ok
    assert not close_states(harmed.state, alone.state).ok


def test_harm_inside_a_switch_is_taken_back(launch: Launch, alone: Found) -> None:
    """The session's own proof sees each as well: the run goes back, and trains as if not switched.

    The position is lost in the last of them.
    """
    harms = dict(zip(("2", "4", "6", "8", "10"), [*HARMS, "position lost"], strict=True))
    harmed = launch(walk=[1, 3, 2, 3, 0, 2], at_load=harms)
    assert [state for _, state, _ in harmed.ends] == ["rolled_back"] * 5
    assert all("digest" in why for _, _, why in harmed.ends[:4]), harmed.ends
    assert "step" in harmed.ends[4][2]
    assert {each["measured"] for each in harmed.round_trips.values()} == {0}
    assert close_curves(harmed.losses, alone.losses).ok


def test_a_rank_with_other_samples_is_seen(launch: Launch, alone: Found) -> None:
    """V3's sabotaged twin: one rank is one sample off, which no state ever shows."""
    shifted = launch(walk=[1, 1], shifted_rank=1)
    found = same_samples(shifted.samples, {step: alone.samples[step] for step in range(1, 5)})
    assert not found.ok
    assert "was consumed" in found.sentence
