"""The actuator's journal: whatever is cut off, flipped or put in, it is read the safe way."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actuator.worlds import NOW, duty, facts, heard, thrift
from tests.api.stranger import STRANGER, needs_root
from wattmesh.errors import JournalUnavailable, Refused
from wattmesh.telemetry.actuator import journal as journal_file
from wattmesh.telemetry.actuator.journal import ActuatorJournal, Memory, decode, encode
from wattmesh.telemetry.actuator.recovery import recovered
from wattmesh.telemetry.actuator.rules.facts import LockAndCap
from wattmesh.telemetry.actuator.rules.leases import ControllerWishes

CAPPED = LockAndCap(gpu_uuid="GPU-0", found_w=500.0, set_w=400.0, prior_w=500.0)
LOCKED = LockAndCap(gpu_uuid="GPU-1", lock_mhz=1200)
HEARD = heard(duty("GPU-0", cap=400), thrift("GPU-1", clock=1200), epoch=7)
MEMORY = Memory(
    boot_id=NOW.boot_id,
    found_w={"GPU-0": 500.0, "GPU-1": 700.0},
    held={"GPU-0": CAPPED, "GPU-1": LOCKED},
    heard=HEARD.obligations(),
)
SEEN = {"GPU-0": facts("GPU-0", requested_w=400.0), "GPU-1": facts("GPU-1", sm_mhz=1200)}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[ActuatorJournal]:
    """A journal with an empty memory."""
    journal = ActuatorJournal.open(tmp_path / "journal")
    journal.rewrite(Memory(boot_id="boot-1"))
    yield journal
    journal.close()


def reread(path: Path) -> Memory:
    """Read a journal's file as the next start would."""
    return decode(path.read_bytes())


def test_what_was_written_is_read_again(opened: ActuatorJournal, tmp_path: Path) -> None:
    """Everything that must survive does, and economy leases do not."""
    opened.rewrite(replace(MEMORY, held={}, heard=ControllerWishes()))
    opened.hear(HEARD)
    opened.hold(CAPPED, LOCKED)
    assert reread(tmp_path / "journal") == MEMORY == opened.memory
    opened.hold(replace(LOCKED, lock_mhz=None))
    assert set(reread(tmp_path / "journal").held) == {"GPU-0"}


def test_nothing_new_costs_no_write(opened: ActuatorJournal, tmp_path: Path) -> None:
    """The same wish again, or the same state, does not touch the disk."""
    opened.hear(HEARD)
    opened.hold(CAPPED)
    before = (tmp_path / "journal").stat().st_size
    opened.hear(HEARD)
    opened.hold(CAPPED)
    assert (tmp_path / "journal").stat().st_size == before


def test_a_long_journal_is_compacted(
    opened: ActuatorJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size stays bounded, and what it says stays the same."""
    monkeypatch.setattr(journal_file, "COMPACT_BYTES", 5000)
    for turn in range(200):
        opened.hold(replace(LOCKED, lock_mhz=1000 + turn))
        assert (tmp_path / "journal").stat().st_size < 6000
    assert reread(tmp_path / "journal").held["GPU-1"].lock_mhz == 1199


def safe(data: bytes) -> None:
    """Hold a reading to the law: what may be ours is found, whatever happened to the file."""
    memory = decode(data)
    after = recovered(memory, SEEN, NOW, obligations=True).memory
    assert after.held["GPU-1"].lock_mhz is not None, "a lock would stay for ever"
    capped = after.held["GPU-0"]
    if capped.found_w is None:
        raise AssertionError("a cap would stay for ever")
    assert capped.found_w == 500.0


def test_any_one_flipped_byte_loses_nothing() -> None:
    """Every record stands there twice."""
    data = bytearray(encode(MEMORY))
    for place in range(len(data)):
        for bit in (0x01, 0x80):
            data[place] ^= bit
            safe(bytes(data))
            data[place] ^= bit


@given(st.data())
def test_a_damaged_stretch_is_noticed_and_every_gpu_given_back(data: st.DataObject) -> None:
    """Where both copies are gone, all GPUs are taken to be ours."""
    whole = encode(MEMORY)
    head = whole.index(b"\n", whole.index(b"\n") + 1) + 1  # the limits that were found
    start = data.draw(st.integers(head, len(whole) - 1))
    end = data.draw(st.integers(start + 1, len(whole)))
    noise = data.draw(st.binary(min_size=end - start, max_size=end - start).map(_no_line_end))
    if whole[start:end] != noise:
        safe(whole[:start] + noise + whole[end:])


def _no_line_end(noise: bytes) -> bytes:
    return noise.replace(b"\n", b"x")


def test_a_tail_that_was_never_finished_announced_no_act() -> None:
    """Cut anywhere inside the last append, the memory is the one before it, undamaged."""
    before = encode(replace(MEMORY, held={"GPU-0": CAPPED}))
    whole = encode(MEMORY)
    assert whole.startswith(before)
    first = whole.index(b"\n", len(before))
    for cut in range(len(before), len(whole) + 1):
        memory = decode(whole[:cut])
        assert not memory.damaged
        assert ("GPU-1" in memory.held) is (cut >= first)  # from its last letter on


HOSTILE = [
    b"",
    b"\0" * 4096,
    b"\xff\xfe\n\n\n",
    b"null\n",
    b"[" * 100_000 + b"\n",
    b"00000000 000002 {}\n",
    b'{"n":1,"kind":"held"}\n' * 3,
]
RECORDS = [
    '{"n":1,"kind":"held","gpu_uuid":"GPU-0","found_w":-5,"set_w":1,"prior_w":null,"lock_mhz":1}',
    '{"n":1,"kind":"held","gpu_uuid":"GPU-0","found_w":500,"set_w":null,"prior_w":null,"lock_mhz":1}',
    '{"n":1,"kind":"held","gpu_uuid":"GPU-0"}',
    '{"n":1,"kind":"start","boot_id":"b","found_w":[1]}',
    '{"n":1,"kind":"heard","epoch":"x","obligations":[]}',
    '{"n":1,"kind":"heard","epoch":1,"obligations":[{"wish":{}}]}',
    '{"n":1,"kind":"of another version"}',
    '{"n":1e999,"kind":"start"}',
    '{"n":true,"kind":"start","boot_id":"b","found_w":{}}',
    '{"n":-1,"kind":"start","boot_id":"b","found_w":{}}',
    '{"n":1,"n":2,"kind":"start","boot_id":"b","found_w":{}}',
    "[1]",
    '"text"',
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_garbage_is_damage(data: bytes) -> None:
    """A file that says nothing is not one that says "nothing is ours"."""
    assert decode(data).damaged


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
def test_a_record_that_is_not_ours_is_damage_even_with_a_right_checksum(record: str) -> None:
    """Wrong types, numbers out of range and unknown kinds are never half believed."""
    text = record.encode()
    assert decode(2 * (f"{crc32(text):08x} {len(text):06d} ".encode() + text + b"\n")).damaged


@given(st.binary(max_size=400))
def test_reading_never_raises(data: bytes) -> None:
    """Any bytes give a memory."""
    decode(data)
    decode(encode(MEMORY) + data)


def test_one_process_has_it(opened: ActuatorJournal, tmp_path: Path) -> None:
    """A second one is refused and told who has it."""
    with pytest.raises(Refused, match=f"process {os.getpid()}, the actuator"):
        ActuatorJournal.open(tmp_path / "journal")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A journal that points elsewhere is not believed."""
    (tmp_path / "other").write_bytes(encode(MEMORY))
    (tmp_path / "journal").symlink_to(tmp_path / "other")
    with pytest.raises(JournalUnavailable):
        ActuatorJournal.open(tmp_path / "journal")


def test_only_a_plain_file_is_believed(tmp_path: Path) -> None:
    """A pipe would read as an empty memory, and take what is to be remembered."""
    os.mkfifo(tmp_path / "journal", 0o600)
    with pytest.raises(Refused, match="so it is not read: move it away"):
        ActuatorJournal.open(tmp_path / "journal")


@needs_root
def test_only_a_file_of_ours_is_believed(tmp_path: Path) -> None:
    """What another user wrote there names no GPU that is ours to give back."""
    path = tmp_path / "journal"
    path.write_bytes(encode(MEMORY))
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(Refused, match="so it is not read: move it away"):
        ActuatorJournal.open(path)
    os.chown(path, 0, 0)
    with closing(ActuatorJournal.open(path)) as ours:
        assert ours.memory.held == MEMORY.held


def test_a_full_disk_announces_nothing_and_leaves_no_half_line(
    opened: ActuatorJournal, tmp_path: Path
) -> None:
    """A write that the disk cuts off is undone; the file still reads as before."""
    opened.hold(CAPPED)
    size = (tmp_path / "journal").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, limits[1]))
    try:
        with pytest.raises(JournalUnavailable, match="no GPU is changed until it can"):
            opened.hold(LOCKED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "journal").stat().st_size == size
    assert set(reread(tmp_path / "journal").held) == {"GPU-0"} == set(opened.memory.held)
    opened.hold(LOCKED)
    assert set(reread(tmp_path / "journal").held) == {"GPU-0", "GPU-1"}


def test_the_file_is_for_its_owner_only(opened: ActuatorJournal, tmp_path: Path) -> None:
    """Nobody else may write what a privileged process believes."""
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / "journal").read_text().splitlines()[0][16:])["n"] == 1
