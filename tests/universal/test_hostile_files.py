"""Checkpoints that somebody made to hurt us: a sentence or an answer, at a cost below a line.

The inputs are those of `benchmarks.hostile`, a fixed number of them; `make fuzz` has no end.
"""

import json
import os
from pathlib import Path

import pytest

from benchmarks.hostile import readers, seeds
from benchmarks.hostile.__main__ import MIB_PER_MIB, report_of
from benchmarks.hostile.bombs import BOMBS
from benchmarks.hostile.tried import Tried
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.files.regular_files import MAX_PATH, RegularFiles

SEED, COUNT = 1115, 300


@pytest.fixture(scope="module")
def tried() -> dict[str, Tried]:
    """Mutants and bombs, each kind in a child whose memory is limited."""
    return {
        what: readers.in_child(what, SEED, 0, COUNT if what == "mutants" else 0)
        for what in ("mutants", "bombs")
    }


def test_every_mutant_ends_in_an_answer_or_a_sentence(tried: dict[str, Tried]) -> None:
    """Every source and our own format, structure-aware; a crash tells seed and number."""
    assert (tried["mutants"].crashes, tried["mutants"].inputs) == ((), COUNT)


def test_every_bomb_is_refused_by_the_sentence_that_fits_it(tried: dict[str, Tried]) -> None:
    """None of them takes the memory, the time or the disk of who opens it."""
    assert (tried["bombs"].crashes, tried["bombs"].inputs) == ((), len(BOMBS))


def test_memory_stays_below_a_line_in_the_bytes(tried: dict[str, Tried]) -> None:
    """The worst of all inputs; 10 MiB of "]" took 864 MiB once."""
    worst = [each for kind in tried.values() for each in kind.costs if each.nbytes > 0]
    assert {each.words for each in worst if each.mib_per_mib > MIB_PER_MIB} == set()
    # The measure itself sees memory: what is only large does take some.
    assert max(each.mib for each in worst) > 10


def test_a_careless_reader_is_found_out() -> None:
    """Sabotaged twin: a reader that trusts a sealed manifest breaks, and is told with its seed."""

    def careless(folder: Path) -> None:
        path = folder / "manifest.json"
        if path.is_file() and path.stat().st_size < 1 << 20:
            sum(each["size"] for each in json.loads(path.read_bytes())["data"].values())

    found = readers.mutants(SEED, 0, 120, look=careless)
    assert found.inputs == 120
    assert found.crashes
    assert all(each.startswith(f"seed {SEED} number ") for each in found.crashes)
    goals = {each.name: each.ok for each in report_of([found], SEED).goals}
    assert not goals["crashes"]


def test_the_same_seed_makes_the_same_mutants() -> None:
    """A crash of last week can be made again from the two numbers that were printed."""

    def sizes(folder: Path) -> None:
        names = sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))
        told.append(repr(names))

    told: list[str] = []
    readers.mutants(SEED, 40, 60, look=sizes)
    once = told[len(seeds.SEEDS) :]
    told.clear()
    readers.mutants(SEED, 0, 60, look=sizes)
    assert told[len(seeds.SEEDS) :][40:] == once


_NAMES = {
    "elsewhere/passwd": (InputInvalid, "leads out of the checkpoint"),
    "a\0b": (InputInvalid, "only plain relative"),
    "a\ud800": (InputInvalid, "only plain relative"),
    "a\x1b[2J": (InputInvalid, "only plain relative"),
    "a/" * MAX_PATH + "a": (InputInvalid, "only plain relative"),
    "zero": (CheckpointDamaged, "a symbolic link, which is not followed"),
    "pipe": (CheckpointDamaged, "a pipe, device or folder"),
    "folder": (CheckpointDamaged, "a pipe, device or folder"),
}
"""What a file may name: a folder that is a link, letters no file has, what is no plain file."""


@pytest.mark.parametrize("name", list(_NAMES), ids=ascii)
def test_only_regular_files_below_the_folder_are_opened(tmp_path: Path, name: str) -> None:
    """Whichever of the three ways it is asked for; and no descriptor is left open."""
    (tmp_path / "elsewhere").symlink_to("/etc")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    kind, words = _NAMES[name]
    before = len(os.listdir("/proc/self/fd"))
    with RegularFiles(tmp_path) as files:
        for ask in (files.look, files.open, lambda it: files.read(it, 10, Allowance())):
            with pytest.raises(kind, match=words):
                ask(name)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_is_sized_before_it_is_read(tmp_path: Path) -> None:
    """Too large, or not as large as it was said to be: no byte of it is read."""
    (tmp_path / "f").write_bytes(b"12345")
    spent = Allowance(nbytes=4)
    with RegularFiles(tmp_path) as files:
        assert files.read("f", 5, Allowance(), 5) == b"12345"
        with pytest.raises(CheckpointDamaged, match="has 5 bytes, not at most 4"):
            files.read("f", 4, Allowance())
        with pytest.raises(CheckpointDamaged, match="has 5 bytes, not the 6 written"):
            files.read("f", 9, Allowance(), 6)
        with pytest.raises(InputInvalid, match="4 is the most that is read"):
            files.read("f", 9, spent)


def test_an_allowance_is_spent_once_for_all_files() -> None:
    """Bytes earn objects and text; what was spent for one file is gone for the next."""
    allowance = Allowance(cpu_s=-1)
    with pytest.raises(InputInvalid, match="s of processor time for 0 bytes"):
        allowance.look("here")
    allowance = Allowance()
    allowance.made(allowance.objects, "one")
    allowance.read(10, "two")
    allowance.made(20, "two")
    with pytest.raises(InputInvalid, match="two: its 10 bytes name the same things"):
        allowance.made(1, "two")
    with pytest.raises(InputInvalid, match="far more text"):
        allowance.written(1 << 40, "two")


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (b"[" * 100 + b"]" * 100, True),
        (b"[" * 101 + b"]" * 101, False),
        (b'["' + b"]" * 500 + b'", ' + b"[" * 100 + b"]" * 100 + b"]", False),
        (b'["' + b"[" * 500 + b'"]', True),
        (b'["\\"' + b"[" * 500 + b'"]', True),
        ("[]".encode("utf-16"), False),
    ],
)
def test_depth_is_counted_outside_of_texts(text: bytes, *, good: bool) -> None:
    """Brackets in texts neither deepen a document nor hide that it is deep."""
    if good:
        assert documents.load(text) == json.loads(text)
    else:
        with pytest.raises(ValueError, match=r"deep|decode"):
            documents.load(text)
