"""Random streams through layouts: who drew alike goes on alike, who drew apart goes on apart.

All ranks are played by this one process, which takes up each rank's streams in turn.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state import plain, streams
from wattmesh.reconfig.state.streams import Place, Streams, place_of

ONE = Layout()
DP2, DP4 = Layout(dp_shard=2), Layout(dp_shard=4)
TP2, PP2, CP2 = Layout(tp=2), Layout(pp=2), Layout(cp=2)
DP2_TP2, PP2_TP2 = Layout(dp_shard=2, tp=2), Layout(pp=2, tp=2)
WALK = (DP2, TP2, DP2, DP2_TP2, DP4, ONE, CP2, PP2_TP2, DP4)

Seed = Callable[[Place], int]
Draw = tuple[float, float, float]


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """Leave the streams of the test session alone."""
    with streams.undisturbed():
        yield


def seeded(seed: int) -> Streams:
    """The streams of a rank whose script has just set every seed."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return Streams(own=streams.now())


def draw() -> Draw:
    """One number of every stream; gauss and randn keep a second one for later."""
    return random.gauss(0, 1), float(np.random.randn()), float(torch.randn(()))


def walk(layouts: tuple[Layout, ...], seed: Seed) -> list[dict[Place, Draw]]:
    """Draw once on every rank of each layout, with a save and a load between any two."""
    first = layouts[0]
    ranks = [seeded(seed(place_of(first, rank))) for rank in range(first.world_size)]
    drawn: list[dict[Place, Draw]] = []
    for layout, following in zip(layouts, (*layouts[1:], ONE), strict=True):
        trainer: dict[str, Any] = {streams.KEY: {}}
        inside: dict[str, torch.Tensor] = {}
        drawn.append({})
        for rank, each in enumerate(ranks):
            streams.set_to(each.own)
            drawn[-1][place_of(layout, rank)] = draw()
            trainer[streams.KEY].update(streams.own(each, layout, rank, inside))
        value = lambda encoded: plain.decode(encoded, inside)  # noqa: E731, B023 - used at once
        ranks = [
            streams.given(trainer, following, rank, value) for rank in range(following.world_size)
        ]
        assert len({each.digest for each in ranks}) == 1
    return drawn


def test_data_ranks_draw_apart_and_their_peers_alike() -> None:
    """In every layout of a long walk, and no number ever comes again, in any of the streams."""
    drawn = walk(WALK, lambda place: 100 + place[0])
    seen: set[float] = set()
    for now in drawn:
        by_data = {place[0]: each for place, each in now.items()}
        assert all(each == by_data[place[0]] for place, each in now.items())
        numbers = {number for each in by_data.values() for number in each}
        assert len(numbers) == 3 * len(by_data)
        assert not numbers & seen
        seen |= numbers


def test_a_stream_that_rested_goes_on_where_it_stopped() -> None:
    """The second data rank's draws, through layouts without it, are those of one seed in a row."""
    drawn = walk(WALK, lambda place: 100 + place[0])
    streams.set_to(seeded(101).own)
    assert [now[1, 0, 0, 0] for now in drawn if (1, 0, 0, 0) in now] == [draw() for _ in range(5)]


def test_ranks_that_were_seeded_alike_stay_alike() -> None:
    """A script that shuffles by a stream which all ranks share must find it shared."""
    for now in walk(WALK, lambda place: 7):
        assert len(set(now.values())) == 1


def test_a_data_rank_that_drew_as_the_first_goes_on_so_though_others_do_not() -> None:
    """Two alike, two apart, through a save and a load."""
    for now in walk((DP4, DP4), lambda place: 100 + max(1, place[0])):
        draws = [now[data, 0, 0, 0] for data in range(4)]
        assert draws[0] == draws[1]
        assert len(set(draws)) == 3


def test_stages_with_streams_of_their_own_get_them_back() -> None:
    """As torchtitan seeds: apart by stage, alike within."""
    drawn = walk((PP2, ONE, TP2, PP2_TP2), lambda place: 100 + place[1])
    whole, halves = drawn[2], drawn[3]
    assert len(set(whole.values())) == 1
    assert halves[0, 0, 0, 0] == halves[0, 0, 0, 1] != halves[0, 1, 0, 0]
    streams.set_to(seeded(101).own)
    assert [draw(), draw()] == [drawn[0][0, 1, 0, 0], halves[0, 1, 0, 0]]


@pytest.mark.parametrize("what", ["hash", "bytes", "gone"])
def test_streams_that_are_not_what_was_saved_are_refused(what: str) -> None:
    """A changed hash, a changed byte, states that are not there: each is damage."""
    inside: dict[str, torch.Tensor] = {}
    told = streams.own(seeded(1), ONE, 0, inside)
    if what == "hash":
        told["0-0-0-0"]["hashes"]["torch"] = "0" * 16
    elif what == "bytes":
        inside["streams.0-0-0-0"][40] ^= 1
    else:
        inside["streams.0-0-0-0"] = torch.frombuffer(bytearray(b"{}"), dtype=torch.uint8)
    found = streams.given({streams.KEY: told}, ONE, 0, lambda each: plain.decode(each, inside))
    assert "random stream" in found.damage
    assert found.own == {}


def test_an_older_checkpoint_leaves_the_streams_alone() -> None:
    """It holds none."""
    assert streams.given({}, ONE, 0, lambda each: each) == Streams()


def test_a_validated_launch_s_seed_gives_other_streams_alike_where_they_were_alike() -> None:
    """Ranks that drew the same still do, ranks that drew apart still do, in every stream."""
    one, same, other = (dict(seeded(seed).own) for seed in (1, 1, 2))
    for stream, state in one.items():
        derived = [streams.seeded(each, 7)[stream] for each in (one, same, other)]
        assert derived[0] == derived[1]
        assert len({*derived, state, streams.seeded(one, 8)[stream]}) == 4
    streams.set_to(streams.seeded(one, 7))
    assert streams.now() == streams.seeded(one, 7)
