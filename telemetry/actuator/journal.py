"""The write-ahead file: what a restart must know is on disk before any GPU is written.

Each record is a line of JSON with a checksum and a number, written twice and fsynced before the
act that it announces; `wattmesh.durable` compacts the file. One process holds it, by a lock that
the kernel releases.

Invariant: no damaged line is believed. One damaged line loses nothing (its second copy is read); an
unfinished last line announced no act; anything else sets `Memory.damaged`, and then the engine
restores every GPU that may have been written.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from zlib import crc32

from wattmesh import durable
from wattmesh.errors import InputInvalid, JournalUnavailable, Refused, WattmeshError
from wattmesh.telemetry.actuator.rules.facts import LockAndCap
from wattmesh.telemetry.actuator.rules.leases import ControllerWishes, WishLease
from wattmesh.telemetry.actuator.wire import parse
from wattmesh.telemetry.desired import LeaseKind, Wish, read_identity

COMPACT_BYTES = 1 << 20
MOST_BYTES = 64 << 20
_HEAD = re.compile(rb"([0-9a-f]{8}) ([0-9]{6}) ")
_HEAD_BYTES = 16
_HEAD_SAMPLE = b"00000000 000000 "


class InUse(Refused):
    """Another process, the running actuator, holds the journal's lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a restart must know.

    Attributes:
        boot_id: the boot in which `held` was written; a later boot has reset every GPU.
        found_w: by GPU, the requested limit when the actuator last started without a cap of its own
            there; a GPU whose record in `held` is lost goes back to it.
        held: by GPU, our lock and cap.
        heard: the journal that is obeyed, its highest epoch, and the obligations.
        damaged: records may be missing.
    """

    boot_id: str = ""
    found_w: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, LockAndCap] = field(default_factory=dict)
    heard: ControllerWishes = field(default_factory=ControllerWishes)
    damaged: bool = False

    def with_held(self, held: LockAndCap) -> "Memory":
        """Replace the record of one GPU."""
        rest = {uuid: each for uuid, each in self.held.items() if uuid != held.gpu_uuid}
        return replace(self, held=rest if held.nothing else {**rest, held.gpu_uuid: held})


def encode(memory: Memory) -> bytes:
    """Write a whole file that `decode` reads back as `memory` (`damaged` is not stored)."""
    records = [start_record(memory), heard_record(memory.heard)]
    records += [held_record(each) for each in memory.held.values()]
    return b"".join(_twice(number, record) for number, record in enumerate(records, 1))


def decode(data: bytes) -> Memory:
    """Read a file in any condition. It never raises; see the module's invariant."""
    *lines, tail = data.split(b"\n")
    sound = _unfinished(tail)
    if _read_line(tail) is not None:
        lines.append(tail)
        sound = True
    good: dict[int, dict[str, Any]] = {}
    sizes: dict[int, int] = {}
    for text in lines:
        numbered = _read_line(text)
        if numbered is not None:
            good.setdefault(*numbered)
            sizes[numbered[0]] = len(text) + 1
    whole = 2 * sum(sizes.values())
    sound_sizes = (whole, whole - sizes.get(len(good), 0))  # the very last copy may be missing
    damaged = not good or not sound or sorted(good) != list(range(1, len(good) + 1))
    damaged |= sum(len(text) + 1 for text in lines) not in sound_sizes
    memory = Memory()
    for number in sorted(good):
        try:
            memory = _take(memory, good[number])
        except (WattmeshError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
            damaged = True
    return replace(memory, damaged=damaged)


def start_record(memory: Memory) -> dict[str, Any]:
    """Record the boot and the limits that were found."""
    return {"kind": "start", "boot_id": memory.boot_id, "found_w": dict(memory.found_w)}


def heard_record(heard: ControllerWishes) -> dict[str, Any]:
    """Record which journal is obeyed, its highest epoch, and every obligation."""
    leases = [
        {
            "wish": each.wish.to_json(),
            "ends_s": each.ends_s,
            "boot_id": each.boot_id,
            "left_s": each.left_s,
            "journal": each.journal,
        }
        for each in heard.obligations().leases.values()
    ]
    return {
        "kind": "heard",
        "journal": heard.journal,
        "epoch": heard.epoch,
        "obligations": leases,
    }


def held_record(held: LockAndCap) -> dict[str, Any]:
    """Record our lock and cap on one GPU."""
    return {
        "kind": "held",
        "gpu_uuid": held.gpu_uuid,
        "found_w": held.found_w,
        "set_w": held.set_w,
        "prior_w": held.prior_w,
        "lock_mhz": held.lock_mhz,
    }


class ActuatorJournal:
    """The file, held open and locked. Not thread safe: the engine's lock guards it."""

    def __init__(self, path: Path, lock: durable.Lock, memory: Memory) -> None:
        """Use `open`."""
        self._path = path
        self._lock = lock
        self._file = -1
        self._size = 0
        self._next = 1
        self.memory = memory

    @classmethod
    def open(cls, path: Path) -> Self:
        """Take the lock and read the file.

        Raises:
            InUse: another process holds it. Refused: this user may not write it.
            JournalUnavailable: the disk fails.
        """
        lock = _lock(path)
        try:
            return cls(path, lock, _read(path))
        except BaseException:
            lock.close()
            raise

    def close(self) -> None:
        """Close the file and release the lock."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._lock.close()

    def rewrite(self, memory: Memory) -> None:
        """Replace the whole file by `memory`, durably and atomically.

        Raises:
            JournalUnavailable: the disk refuses; the file is unchanged.
        """
        data = encode(memory)
        try:
            durable.write_bytes(self._path, data, mode=0o600)
            opened = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise _unavailable(self._path, error) from error
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size = opened, len(data)
        self._next = 3 + len(memory.held)
        self.memory = replace(memory, damaged=False)

    def assume(self, memory: Memory) -> None:
        """Use `memory` although the disk refuses it; the file is unchanged."""
        self.memory = memory

    def hold(self, *held: LockAndCap) -> None:
        """Record what is, or is about to be, our lock or cap; durable when it returns.

        Raises:
            JournalUnavailable: the disk refuses; then no GPU may be written.
        """
        changed = [each for each in held if self.held(each.gpu_uuid) != each]
        memory = self.memory
        for each in changed:
            memory = memory.with_held(each)
        self._append([held_record(each) for each in changed], memory)

    def hear(self, heard: ControllerWishes) -> None:
        """Record the journal, its epoch and the obligations; durable when it returns.

        Raises:
            JournalUnavailable: the disk does not take it.
        """
        kept = heard.obligations()
        if kept == self.memory.heard:
            return
        self._append([heard_record(kept)], replace(self.memory, heard=kept))

    def held(self, gpu_uuid: str) -> LockAndCap:
        """Return our lock and cap on a GPU."""
        return self.memory.held.get(gpu_uuid) or LockAndCap(gpu_uuid=gpu_uuid)

    def _append(self, records: list[dict[str, Any]], memory: Memory) -> None:
        """Write records and fsync; a failed write leaves no partial line."""
        if not records:
            return
        if self._file < 0 or self._size > COMPACT_BYTES:
            self.rewrite(memory)
            return
        data = b"".join(_twice(self._next + i, record) for i, record in enumerate(records))
        try:
            if (written := os.write(self._file, data)) != len(data):
                raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were taken")
            os.fsync(self._file)
        except OSError as error:
            self._undo()
            raise _unavailable(self._path, error) from error
        self._size += len(data)
        self._next += len(records)
        self.memory = memory

    def _undo(self) -> None:
        """Cut off a failed write; if that fails too, the next write replaces the file."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            os.close(self._file)
            self._file = -1


def _twice(number: int, record: Mapping[str, Any]) -> bytes:
    """Encode both copies of a record."""
    text = json.dumps({"n": number, **record}, separators=(",", ":"), allow_nan=False).encode()
    return 2 * (f"{crc32(text):08x} {len(text):06d} ".encode() + text + b"\n")


def _read_line(text: bytes) -> tuple[int, dict[str, Any]] | None:
    """Decode one copy; None when it is damaged."""
    head, body = _HEAD.match(text), text[_HEAD_BYTES:]
    if head is None or int(head[1], 16) != crc32(body) or int(head[2]) != len(body):
        return None
    try:
        record = parse(body)
    except WattmeshError:
        return None
    number = record.pop("n", None) if isinstance(record, dict) else None
    return (number, record) if type(number) is int and number > 0 else None


def _unfinished(tail: bytes) -> bool:
    """Tell whether the end of the file is one line whose writing was cut short."""
    head = _HEAD.match((tail + _HEAD_SAMPLE[len(tail) :])[:_HEAD_BYTES])
    return head is not None and (len(tail) <= _HEAD_BYTES or len(tail) < _HEAD_BYTES + int(head[2]))


def _take(memory: Memory, record: dict[str, Any]) -> Memory:
    """Apply one record to the memory.

    Raises:
        WattmeshError, KeyError, TypeError, ValueError: the record is malformed.
    """
    kind = record.get("kind")
    if kind == "start":
        found = {str(uuid): _watts(value) or 0.0 for uuid, value in record["found_w"].items()}
        return replace(memory, boot_id=str(record["boot_id"]), found_w=found)
    if kind == "heard":
        leases = [_lease(each) for each in record["obligations"]]
        return replace(
            memory,
            heard=ControllerWishes(
                # Records from before identities have none.
                journal=read_identity(record.get("journal", "")),
                epoch=int(record["epoch"]),
                leases={(each.wish.gpu_uuid, each.wish.kind): each for each in leases},
            ),
        )
    if kind == "held":
        return memory.with_held(_held(record))
    raise ValueError(f"unknown record {kind!r}")


def _held(record: Mapping[str, Any]) -> LockAndCap:
    lock = record["lock_mhz"]
    held = LockAndCap(
        gpu_uuid=str(record["gpu_uuid"]),
        found_w=_watts(record["found_w"]),
        set_w=_watts(record["set_w"]),
        prior_w=_watts(record["prior_w"]),
        lock_mhz=None if lock is None else int(lock),
    )
    if (held.found_w is None) != (held.set_w is None):
        raise ValueError(f"half a cap: {held}")
    return held


def _lease(data: Mapping[str, Any]) -> WishLease:
    wish = Wish.from_json(data["wish"])
    if wish.kind is not LeaseKind.OBLIGATION:
        raise ValueError("only obligations are kept")
    return WishLease(
        wish=wish,
        ends_s=float(data["ends_s"]),
        boot_id=str(data["boot_id"]),
        left_s=float(data["left_s"]),
        journal=read_identity(data.get("journal", "")),
    )


def _watts(value: object) -> float | None:
    """Check a power in (0, 1e6) W; None passes."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e6:
        raise ValueError(f"{value!r} is not a power")
    return float(value)


def _lock(path: Path) -> durable.Lock:
    """Take the lock beside the journal.

    Raises:
        InUse: another process holds it. Refused: this user may not write there.
        InputInvalid: there is no such folder. JournalUnavailable: the disk fails.
    """
    try:
        return durable.hold(path)
    except durable.Held as error:
        raise InUse(
            f"{path} is in use by process {error.holder}, the actuator: ask that one, or stop it "
            "first (systemctl stop wattmesh-actuator, which gives every GPU back)"
        ) from error
    except FileNotFoundError as error:
        raise InputInvalid(
            f"there is no folder {path.parent}: no actuator has ever run here, or actuator.journal "
            "names another place"
        ) from error
    except PermissionError as error:
        raise Refused(
            f"uid {os.geteuid()} may not write {path}.lock: only the actuator's own user (root) "
            "may change GPUs; run this as root"
        ) from error
    except OSError as error:
        raise _unavailable(path.with_name(f"{path.name}.lock"), error) from error


def _read(path: Path) -> Memory:
    """Read the file; a missing one is an empty memory.

    Raises:
        Refused: it is no plain file, or another user's. JournalUnavailable: the disk fails.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return Memory()
    except OSError as error:
        raise _unavailable(path, error) from error
    with os.fdopen(opened, "rb") as file:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            raise Refused(
                f"{path} is not a plain file of this user or root, so it is not read: move it away"
            )
        try:
            data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise _unavailable(path, error) from error
    memory = decode(data[:MOST_BYTES])
    return replace(memory, damaged=True) if len(data) > MOST_BYTES else memory


def _unavailable(path: Path, error: OSError) -> JournalUnavailable:
    why = durable.cannot_write(path.parent) or error.strerror or error
    return JournalUnavailable(f"{path} cannot be used ({why}): no GPU is changed until it can")
