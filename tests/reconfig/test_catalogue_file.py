"""The catalogue's file: reads back equal, and names every mistake."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattmesh.errors import FixInput, InputInvalid, SettingsInvalid
from wattmesh.reconfig.catalogue import (
    PAUSED,
    Catalogue,
    Equivalence,
    Evidence,
    OperatingPoint,
    PairCost,
    ProbeEvidence,
    Release,
    SwitchCost,
)
from wattmesh.reconfig.catalogue_file import NUMBERS, SOURCES, load, parse, render, save
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.layout import CP_METHODS, SCHEDULES, Layout

DESIGN_EXAMPLE = """
[job]
name = "llama-70b"
tokens_total = 2.0e11
global_batch = 2048
seq_len = 8192
reference = "A"
release = "released"
idle_power_w_per_gpu = 220
embodied_g_per_gpu_hour = 10
[switch]
layout_s = 300
layout_energy_j = 2.9e7
clock_s = 0
reacquire_s = 0
[[point]]
id = "A"
gpus = 256
clock_mhz = 1980
layout = { pp = 4, dp_replicate = 1, dp_shard = 8, cp = 1, tp = 8, ep = 1, micro_batch = 1 }
tokens_per_s = 231700
power_w = 222700
memory_gib = 71.0
equivalence = "exact"
evidence = "measured"
sources = { tokens_per_s = "measured", power_w = "simulated" }
"""

MISTAKEN = """
extra = 1
[job]
name = ""
tokens_total = "many"
reference = "Z"
release = "sold"
idle_power_w_per_gpu = -3
watts = 7
[switch]
layout_s = inf
[[point]]
id = "A"
layout = { tp = 3, ep = 2 }
tokens_per_s = 0
power_w = true
sources = { power_w = "guessed", colour = "measured" }
[[point]]
id = "A"
gpus = 4
layout = { tp = 2 }
tokens_per_s = 1
power_w = 1
evidence = "hearsay"
probe = { moved = -1, seen = 3 }
"""

# What `str.isprintable` accepts: nothing that controls or separates, but the space.
PRINTABLE = st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" ")
WORDS = st.text(PRINTABLE, min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
POSITIVE = st.floats(1e-6, 1e12)
DEGREES = st.sampled_from([1, 2, 3, 8])
LAYOUTS = st.builds(
    Layout,
    pp=DEGREES,
    dp_replicate=DEGREES,
    dp_shard=DEGREES,
    cp=DEGREES,
    tp=DEGREES,
    schedule=st.sampled_from(SCHEDULES),
    micro_batch=st.integers(0, 64),
    recompute=st.booleans(),
    cp_method=st.sampled_from(CP_METHODS),
    cp_layers=st.sampled_from(["", "1", "1x4 1"]),
    ep_bottleneck=st.sampled_from([1, 4]),
)
SMALL = st.floats(0, 1)
PROBES = st.builds(
    ProbeEvidence,
    moved=SMALL,
    allowed=SMALL,
    noise=st.none() | SMALL,
    orders=st.integers(0, 8),
    computed_in=st.sampled_from(["", "bfloat16"]),
)
PRINTS = st.builds(
    Fingerprint,
    gpu_models=st.none() | WORDS,
    torch=st.none() | WORDS,
    code_digest=st.none() | WORDS,
)
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
POINTS = st.builds(
    OperatingPoint,
    id=WORDS,
    layout=LAYOUTS,
    gpus=st.just(1),
    tokens_per_s=POSITIVE,
    power_w=POSITIVE,
    clock_mhz=st.none() | st.integers(1, 5000),
    memory_gib=st.none() | POSITIVE,
    equivalence=st.sampled_from(Equivalence),
    evidence=st.sampled_from(Evidence),
    sources=st.dictionaries(st.sampled_from(NUMBERS), st.sampled_from(SOURCES)),
    probe=st.none() | PROBES,
    fingerprint=st.none() | PRINTS.filter(lambda each: each.known),
    validated_at=st.none() | MOMENTS,
    validated_by=st.just("") | WORDS,
    tolerance=st.none() | SMALL,
    proven_as=st.just("") | WORDS,
).map(lambda point: replace(point, gpus=point.layout.world_size))


def _pairs(ids: list[str]) -> st.SearchStrategy[tuple[PairCost, ...]]:
    """Draw costs of some pairs of points, in the order in which a file groups them."""
    ends = st.sampled_from([*ids, PAUSED])
    pairs = st.builds(
        PairCost, origin=ends, target=ends, seconds=st.floats(0, 1e6), energy_j=st.floats(0, 1e12)
    )
    return st.lists(pairs, max_size=3, unique_by=lambda pair: (pair.origin, pair.target)).map(
        lambda drawn: tuple(
            pair
            for origin in dict.fromkeys(each.origin for each in drawn)
            for pair in drawn
            if pair.origin == origin
        )
    )


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    """Draw a catalogue with one to four points."""
    drawn = draw(st.lists(POINTS, min_size=1, max_size=4, unique_by=lambda point: point.id))
    points = [
        replace(each, equivalence=Equivalence.STATISTICAL)
        if each.layout.other_function(drawn[0].layout)
        else each
        for each in drawn
    ]
    return Catalogue(
        job=draw(WORDS),
        tokens_total=draw(st.integers(0, 10**18)),
        reference=points[0].id,
        points=tuple(points),
        release=draw(st.sampled_from(Release)),
        idle_power_w_per_gpu=draw(st.floats(0, 1e6)),
        embodied_g_per_gpu_hour=draw(st.floats(0, 1e6)),
        global_batch=draw(st.integers(0, 10**9)),
        seq_len=draw(st.integers(0, 10**9)),
        switch=SwitchCost(
            layout_s=draw(st.floats(0, 1e6)),
            layout_energy_j=draw(st.floats(0, 1e12)),
            clock_s=draw(st.floats(0, 1e6)),
            source=draw(WORDS),
            reacquire_s=draw(st.none() | st.floats(0, 1e6)),
            pairs=draw(_pairs([point.id for point in points])),
        ),
        simulated=tuple(draw(st.lists(st.text(st.characters(codec="utf-8")), max_size=3))),
    )


@given(catalogues())
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_a_catalogue_reads_back_as_written(catalogue: Catalogue) -> None:
    """Whatever a catalogue may hold, the file carries exactly."""
    text = render(catalogue).encode()
    again = parse(text, "here")
    assert again == replace(catalogue, digest=hashlib.sha256(text).hexdigest())


def test_the_example_of_the_design_is_read() -> None:
    """The file that the design page shows is a legal one."""
    catalogue = parse(DESIGN_EXAMPLE.encode(), "design")
    point = catalogue.point("A")
    assert (catalogue.tokens_total, catalogue.release) == (200_000_000_000, Release.RELEASED)
    assert (point.layout.world_size, point.clock_mhz, point.power_w) == (256, 1980, 222_700)
    assert point.sources == {"tokens_per_s": "measured", "power_w": "simulated"}


def test_a_pair_may_cost_something_else_and_its_points_must_exist() -> None:
    """Pairs override what holds for all switches; unknown ids are named with their key."""
    told = DESIGN_EXAMPLE.replace(
        "[[point]]",
        "[switch.pairs]\nA = { paused = { seconds = 20, energy_j = 4e6 } }\n"
        "paused = { A = { seconds = 90, energy_j = 2e7 } }\n[[point]]",
    )
    switch = parse(told.encode(), "here").switch
    assert switch.between("A", "paused") == PairCost(
        origin="A", target="paused", seconds=20.0, energy_j=4e6
    )
    assert switch.between("paused", "paused") is None
    assert switch.reacquire_s == 0.0
    with pytest.raises(SettingsInvalid, match=r'switch\.pairs\.A\.Z.*"Z" is not one of the points'):
        parse(told.replace("{ paused = {", "{ Z = {").encode(), "here")
    with pytest.raises(InputInvalid, match="names Z, which is not among its points"):
        replace(
            parse(told.encode(), "here"),
            switch=SwitchCost(pairs=(PairCost(origin="A", target="Z", seconds=1.0, energy_j=1.0),)),
        )
    with pytest.raises(SettingsInvalid, match='"paused" is no name for a point'):
        parse(DESIGN_EXAMPLE.replace('"A"', '"paused"').encode(), "here")


def test_every_mistake_is_named_at_once_with_its_key_path() -> None:
    """One reading of a bad file lists all that is wrong with it."""
    with pytest.raises(SettingsInvalid) as caught:
        parse(MISTAKEN.encode(), "bad.toml")
    assert {key for key, _ in caught.value.mistakes} == {
        "extra",
        "job.name",
        "job.tokens_total",
        "job.reference",
        "job.release",
        "job.idle_power_w_per_gpu",
        "job.watts",
        "switch.layout_s",
        "point[0].layout",
        "point[0].tokens_per_s",
        "point[0].power_w",
        "point[0].sources.power_w",
        "point[0].sources.colour",
        "point[1].id",
        "point[1].gpus",
        "point[1].evidence",
        "point[1].probe.moved",
        "point[1].probe.allowed",
        "point[1].probe.seen",
    }
    assert "19 mistakes" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('name = "llama-70b"', "", "job.name"),
        ('id = "A"', "id = 3", "point[0].id"),
        ("tokens_per_s = 231700", "tokens_per_s = nan", "point[0].tokens_per_s"),
        ("tokens_per_s = 231700", "tokens_per_s = 1e300", "point[0].tokens_per_s"),
        ("gpus = 256", "gpus = 255", "point[0].gpus"),
        ("layout = {", "layout = { width = 3, ", "point[0].layout"),
        ("clock_mhz = 1980", "clock_mhz = 1980.5", "point[0].clock_mhz"),
        ("memory_gib", "validated_at = 2026-11-01T12:00:00\nmemory_gib", "point[0].validated_at"),
        ("memory_gib", "fingerprint = { cuda = '13' }\nmemory_gib", "point[0].fingerprint"),
        ("tokens_total = 2.0e11", "tokens_total = 1.0e20", "job.tokens_total"),
        ("[switch]", "switch = 3\n[other]", "job.switch"),
        ("[[point]]", "[point]", "point"),
    ],
)
def test_one_wrong_value_is_refused_where_it_stands(old: str, new: str, key: str) -> None:
    """Each sabotage of a good file is found, under its own key."""
    assert old in DESIGN_EXAMPLE
    with pytest.raises(SettingsInvalid) as caught:
        parse(DESIGN_EXAMPLE.replace(old, new, 1).encode(), "sabotaged")
    assert key in {found for found, _ in caught.value.mistakes}


@pytest.mark.parametrize("claimed", Equivalence)
def test_a_point_of_another_function_is_never_read_as_the_same_run(claimed: Equivalence) -> None:
    """Whatever a file says of it: one that sends narrow tokens is statistical at best."""
    layout = "{ ep = 2, dp_shard = 2 }"
    rest = f"tokens_per_s = 1\npower_w = 1\nevidence = 'validated'\nequivalence = '{claimed}'\n"
    job = "[job]\nname = 'j'\ntokens_total = 1\nreference = 'A'\n"
    whole = f"[[point]]\nid = 'A'\nlayout = {layout}\n{rest}"
    narrow = f"[[point]]\nid = 'N'\nlayout = {layout[:-2]}, ep_bottleneck = 4 }}\n{rest}"
    assert len(parse((job + whole + whole.replace("'A'", "'B'")).encode(), "alike").points) == 2
    if claimed in (Equivalence.STATISTICAL, Equivalence.NONE):
        assert parse((job + whole + narrow).encode(), "honest").point("N").equivalence is claimed
        return
    with pytest.raises(SettingsInvalid, match="ep_bottleneck = 4, the reference with 1") as caught:
        parse((job + whole + narrow).encode(), "claimed")
    assert [key for key, _ in caught.value.mistakes] == ["point[1].equivalence"]


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode()))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    """Garbage never passes, and never escapes as another kind of error."""
    with pytest.raises(FixInput):
        parse(data, "garbage")


@given(st.data())
def test_a_truncated_file_never_gives_another_layout_or_better_evidence(
    data: st.DataObject,
) -> None:
    """A cut file is refused, or it holds the whole layout and no more evidence than before."""
    whole = parse(DESIGN_EXAMPLE.encode(), "whole")
    cut = data.draw(st.integers(0, len(DESIGN_EXAMPLE) - 1))
    try:
        part = parse(DESIGN_EXAMPLE[:cut].encode(), "cut")
    except FixInput:
        return
    assert part.points[0].layout == whole.points[0].layout
    assert part.points[0].evidence in (Evidence.ASSUMED, whole.points[0].evidence)


def test_deep_nesting_is_refused() -> None:
    """A file built to exhaust the parser is a mistake like any other."""
    with pytest.raises(InputInvalid, match="not TOML"):
        parse(b"a = " + b"[" * 100_000, "deep")


def test_saving_writes_a_file_that_loads_equal(tmp_path: Path) -> None:
    """The digest is that of the bytes on disk."""
    catalogue = parse(DESIGN_EXAMPLE.encode(), "design")
    path = tmp_path / "catalogue.toml"
    written = save(catalogue, path)
    assert load(path) == written
    assert written.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert replace(written, digest="") == replace(catalogue, digest="")


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    """A name of two lines, or an infinite number, leaves the old file alone."""
    catalogue = parse(DESIGN_EXAMPLE.encode(), "design")
    path = tmp_path / "catalogue.toml"
    save(catalogue, path)
    before = path.read_bytes()
    for wrong in (
        replace(catalogue, job="two\nlines"),
        replace(catalogue, idle_power_w_per_gpu=float("inf")),
        replace(catalogue, job="\ud800"),
    ):
        with pytest.raises(FixInput):
            save(wrong, path)
    assert path.read_bytes() == before


def test_a_missing_or_huge_file_is_an_input_mistake(tmp_path: Path) -> None:
    """The message names the path."""
    with pytest.raises(InputInvalid, match="gone"):
        load(tmp_path / "gone.toml")
    big = tmp_path / "big.toml"
    big.write_bytes(b"#" * (1 << 20) + b"\n\n")
    with pytest.raises(InputInvalid, match="larger than"):
        load(big)
