"""The bound of a conversion is the fastest of many ways to copy the same bytes, or it is none."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.checkpoint.__main__ import PHYSICAL, Ran, Round, goals
from benchmarks.checkpoint.disk_bound import OUR_WAY, PAGE, WAYS, Range, copy_s, finalists, ranges
from benchmarks.report import Goal
from benchmarks.usage import Used, cached_share
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.index import Segment, TensorEntry, build
from wattmesh.reconfig.universal.sources.source import Source

PEER = "ds_to_universal"


def a_round(ours_s: float, ways_s: Mapping[str, float], peer_s: float = 10.0) -> Round:
    """A round in which every tool took so long."""
    used = Used(wall_s=ours_s, cpu_s=1.0, read_gb=1.0, written_gb=1.0, peak_rss_mib=50.0,
                tree_mib=50.0, said="")  # fmt: skip
    seconds = {PEER: peer_s, PHYSICAL: ours_s, **ways_s}
    ran = {name: Ran(seconds=took, cached=0.0, used=used) for name, took in seconds.items()}
    return Round(ran=ran, peer=PEER, ways=tuple(ways_s), data_gb=1.0)


def over_bound(*rounds: Round) -> Goal:
    """The goal that is held against the bound."""
    found = goals({"ZeRO-1": rounds}, [1.0], 0.1)
    return next(each for each in found if each.name == "physical_over_disk_bound")


def test_the_bound_is_the_fastest_way_of_the_same_round() -> None:
    """Each round is held against its own best, and the figure is the median of the rounds."""
    rounds = [a_round(1.1, {"a": 1.0, "b": 4.0}), a_round(2.4, {"a": 9.0, "b": 2.0}),
              a_round(30.0, {"a": 3.0, "b": 3.0})]  # fmt: skip
    assert over_bound(*rounds).value == pytest.approx(1.2)


def test_a_bound_that_a_tool_beats_is_none() -> None:
    """Sabotaged twin: a bound that copies slowly would flatter; it is not measured, not reached."""
    flattering = over_bound(a_round(1.0, {"read, then write": 2.4}))
    assert (flattering.value, flattering.ok) == (None, False)
    assert over_bound(a_round(1.1, {"read, then write": 2.4, "both at once": 1.0})).ok


def test_what_our_own_conversion_does_is_always_in_the_race() -> None:
    """Even when it was slow before the rounds."""
    others = [way for way in WAYS if way != OUR_WAY]
    assert OUR_WAY in WAYS
    assert finalists([*others, OUR_WAY])[-1] == OUR_WAY
    assert {way.threads for way in WAYS} >= {1, 2, 4, 8}
    assert {(way.read_direct, way.write_direct) for way in WAYS} == {
        (one, other) for one in (False, True) for other in (False, True)
    }


def made(folder: Path, sizes: Mapping[str, int]) -> Source:
    """Files of chance bytes, of which all but the first page are tensors, each in two parts."""
    segments, entries = [], []
    for name, size in sizes.items():
        (folder / name).write_bytes(os.urandom(size))
        half = (size - PAGE) // 2
        entries.append(TensorEntry(name=name, state="param", dtype="uint8", shape=(2 * half,)))
        for begin in (0, half):
            box, offset = Box((begin,), (half,)), PAGE + begin
            segments.append(Segment(entry=(name, "param"), file=name, offset=offset, box=box,
                                    flat=True))  # fmt: skip
    index = build(entries, segments)
    return Source(kind="deepspeed", described="made up", folder=folder, index=index, values={},
                  files={})  # fmt: skip


def missed(wanted: Sequence[Range], copy: bytes) -> list[str]:
    """Names of the files whose bytes a copy does not hold, each range from a whole page on."""
    found, at = [], 0
    for each in wanted:
        told = each.path.read_bytes()[each.offset : each.offset + each.nbytes]
        if copy[at : at + each.nbytes] != told:
            found.append(each.path.name)
        at += -(-each.nbytes // PAGE) * PAGE
    return found


def test_every_way_copies_the_tensors_bytes_and_no_others(tmp_path: Path) -> None:
    """A way that skipped a block were a fast bound and a false one: its twin is caught."""
    folder, target = tmp_path / "source", tmp_path / "copy"
    folder.mkdir()
    sizes = {"one": 2 * (1 << 20) + 10, "two": (1 << 20) + 100}  # neither ends with a page
    source = made(folder, sizes)
    wanted = ranges(source)
    assert wanted == tuple(
        Range(path=folder / name, offset=PAGE, nbytes=size - PAGE) for name, size in sizes.items()
    )
    done = 0
    for way in WAYS:
        if copy_s(way, wanted, target) is not None:
            assert missed(wanted, target.read_bytes()) == [], way
            done += 1
        target.unlink(missing_ok=True)
    assert done >= 1
    assert copy_s(OUR_WAY, wanted, target) is not None
    spoilt = bytearray(target.read_bytes())
    spoilt[wanted[0].nbytes + 2 * PAGE] ^= 1
    assert missed(wanted, bytes(spoilt)) == ["two"]


def test_whether_a_read_would_be_cold_is_looked_at(tmp_path: Path) -> None:
    """What was just written is in memory; a hole that nobody read is not."""
    (tmp_path / "a").write_bytes(bytes(64 * PAGE))
    assert cached_share(tmp_path) == 1.0
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(192 * PAGE)
    assert cached_share(tmp_path) == pytest.approx(0.25)
