"""How fast a disk gives bytes and takes them at once: the bound of a physical conversion.

Every way in WAYS reads the very byte ranges that a conversion reads, from a cold cache, and writes
as many to a new file until file and folder are on the disk: with one to eight blocks in flight, of
1 and 8 MiB, through the page cache or past it (O_DIRECT) on either side, inside the kernel
(sendfile), and as our own conversion does it (one thread, space taken beforehand, each block
written out early), only without its hashes.

Invariant: the bound is the fastest of what was tried, measured beside the tools in the same round;
a bound that a tool beats is none.
"""

import errno
import itertools
import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.usage import drop_caches
from wattmesh.reconfig.universal.sources.source import Source

PAGE = 4096
"""Offsets and sizes that O_DIRECT takes on every common disk."""

AGAIN, FINALISTS = 8, 3
"""Ways that are tried twice; ways that run beside the tools in every round, the fastest of which is
the round's bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to copy.

    Attributes:
        threads: blocks in flight, each read and then written by a thread of its own.
        read_direct, write_direct: past the page cache.
        reserved: the target's space is taken before the first byte.
        early: each block is sent to the disk as soon as it is written, not at the end.
        in_kernel: bytes never reach this process (sendfile).
    """

    threads: int
    block_mib: int = 8
    read_direct: bool = False
    write_direct: bool = False
    reserved: bool = False
    early: bool = False
    in_kernel: bool = False

    def __str__(self) -> str:
        """As rows name it."""
        sides = {
            (True, True): "O_DIRECT",
            (False, True): "O_DIRECT to write",
            (True, False): "O_DIRECT to read",
            (False, False): "page cache",
        }
        words = [
            f"{self.threads} x {self.block_mib} MiB",
            sides[self.read_direct, self.write_direct],
        ]
        words += [name for name in ("in_kernel", "reserved", "early") if getattr(self, name)]
        return ", ".join(words).replace("in_kernel", "sendfile")


OUR_WAY = Way(threads=1, reserved=True, early=True)
"""What `write_physical` does (reconfig/universal/convert/filling.py), but for its hashes."""


def _ways() -> Iterator[Way]:
    yield OUR_WAY
    for threads, block, reserved in itertools.product((1, 2, 4, 8), (1, 8), (False, True)):
        yield Way(threads=threads, block_mib=block, read_direct=True, write_direct=True,
                  reserved=reserved)  # fmt: skip
    for threads, early in itertools.product((1, 2, 4), (False, True)):
        yield Way(threads=threads, early=early)
        yield Way(threads=threads, early=early, in_kernel=True)
    for threads in (2, 4, 8):
        yield Way(threads=threads, write_direct=True, reserved=True)
        yield Way(threads=threads, read_direct=True, reserved=True, early=True)
        yield Way(threads=threads, reserved=True, early=True)


WAYS = tuple(dict.fromkeys(_ways()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bytes of one file."""

    path: Path
    offset: int
    nbytes: int


def ranges(source: Source) -> tuple[Range, ...]:
    """Give what a conversion of a source reads: its segments' bytes, each once, in file order."""
    segments = source.index.segments
    found: list[Range] = []
    rows = zip(
        segments.file.tolist(), segments.offset.tolist(), segments.nbytes.tolist(), strict=True
    )
    for file, offset, nbytes in sorted(rows):
        path, last = source.folder / source.index.files[file], found[-1] if found else None
        if last and last.path == path and offset <= last.offset + last.nbytes:
            end = max(last.offset + last.nbytes, offset + nbytes)
            found[-1] = Range(path=path, offset=last.offset, nbytes=end - last.offset)
        else:
            found.append(Range(path=path, offset=offset, nbytes=nbytes))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Whole pages of a source file, and where they go."""

    path: Path
    offset: int
    nbytes: int
    target: int


def _blocks(wanted: Iterable[Range], most: int) -> Iterator[_Block]:
    """Cut ranges into blocks of whole pages."""
    target = 0
    for each in wanted:
        end = -(-(each.offset + each.nbytes) // PAGE) * PAGE
        for offset in range(each.offset // PAGE * PAGE, end, most):
            nbytes = min(most, end - offset)
            yield _Block(path=each.path, offset=offset, nbytes=nbytes, target=target)
            target += nbytes


def copy_s(way: Way, wanted: Sequence[Range], target: Path) -> float | None:
    """Copy ranges into a new file; seconds until all of it is on the disk.

    The caller sees to a cold cache. None: this file system does not do it that way.
    """
    blocks = list(_blocks(wanted, way.block_mib << 20))
    began_s = time.monotonic()
    try:
        with ExitStack() as opened:
            _copy(way, blocks, target, opened)
    except OSError as error:
        past = way.read_direct or way.write_direct or way.in_kernel
        if past and error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            return None
        raise
    return time.monotonic() - began_s


def _copy(way: Way, blocks: Sequence[_Block], target: Path, opened: ExitStack) -> None:
    """Copy all blocks, several at once."""

    def open_(path: Path, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        opened.callback(os.close, descriptor)
        return descriptor

    reading = os.O_RDONLY | (os.O_DIRECT if way.read_direct else 0)
    writing = os.O_WRONLY | (os.O_DIRECT if way.write_direct else 0)
    sources = {path: open_(path, reading) for path in {each.path: None for each in blocks}}
    whole = open_(target, writing | os.O_CREAT | os.O_EXCL)
    if way.reserved:
        os.posix_fallocate(whole, 0, blocks[-1].target + blocks[-1].nbytes)
    todo, lock = iter(blocks), threading.Lock()

    def work(descriptor: int) -> None:
        with mmap.mmap(-1, way.block_mib << 20) as memory, memoryview(memory) as buffer:
            while True:
                with lock:
                    block = next(todo, None)
                if block is None:
                    return
                if way.in_kernel:
                    _send(sources[block.path], descriptor, block)
                else:
                    _move(sources[block.path], descriptor, block, buffer)
                if way.early:
                    # Linux begins to write these pages out, and returns.
                    os.posix_fadvise(descriptor, block.target, block.nbytes, os.POSIX_FADV_DONTNEED)

    with ThreadPoolExecutor(way.threads) as pool:
        # A descriptor each, for sendfile writes at the descriptor's own position.
        list(pool.map(work, [open_(target, writing) for _ in range(way.threads)]))
    os.fsync(whole)
    os.fsync(open_(target.parent, os.O_RDONLY | os.O_DIRECTORY))


def _move(source: int, target: int, block: _Block, buffer: memoryview) -> None:
    """Copy one block through memory; the last page of a file may lie beyond its end."""
    done = 0
    while done < block.nbytes:
        count = os.preadv(source, [buffer[done : block.nbytes]], block.offset + done)
        if count == 0:
            break
        done += count
    written = 0
    while written < block.nbytes:
        rest = buffer[written : block.nbytes]
        written += os.pwritev(target, [rest], block.target + written)


def _send(source: int, target: int, block: _Block) -> None:
    """Copy one block inside the kernel."""
    os.lseek(target, block.target, os.SEEK_SET)
    done = 0
    while done < block.nbytes:
        count = os.sendfile(target, source, block.offset + done, block.nbytes - done)
        if count == 0:
            break
        done += count


def cold_copy_s(way: Way, source: Source, into: Path) -> float | None:
    """Copy a source's ranges from a cold cache, and take the copy away again."""
    target = into / "copy"
    drop_caches(source.folder)
    try:
        return copy_s(way, ranges(source), target)
    finally:
        target.unlink(missing_ok=True)


def search(source: Source, into: Path, ways: Sequence[Way] = WAYS) -> dict[Way, list[float]]:
    """Try every way once and the best of them again; seconds of each, the fastest way first.

    Ways that the file system does not do are left out.
    """
    found: dict[Way, list[float]] = {}
    for way in ways:
        took = cold_copy_s(way, source, into)
        if took is not None:
            found[way] = [took]
    for way in sorted(found, key=lambda each: found[each])[:AGAIN]:
        took = cold_copy_s(way, source, into)
        found[way] += [] if took is None else [took]
    return dict(sorted(found.items(), key=lambda each: min(each[1])))


def finalists(tried: Iterable[Way]) -> tuple[Way, ...]:
    """Choose what runs in every round: the fastest, and in any case what our own conversion does.

    Args:
        tried: fastest first.
    """
    best = list(tried)[:FINALISTS]
    return tuple(dict.fromkeys([*best, OUR_WAY]))
