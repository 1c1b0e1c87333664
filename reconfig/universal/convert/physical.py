"""Writes a physical checkpoint: streams all tensors of a source into new safetensors files.

Worker processes fill every n-th segment each; this process creates the files, waits, syncs, seals.

Invariant: a published checkpoint was read from one state of the source, and its digests are of the
buffers that were written; on any failure the staging folder is removed and the source unchanged.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal import folder, replicas
from wattmesh.reconfig.universal.convert import worker
from wattmesh.reconfig.universal.convert.filling import Filler, write_all
from wattmesh.reconfig.universal.convert.origin import check_unchanged, origin_of
from wattmesh.reconfig.universal.files.hashing import default_jobs
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.files.staging import Fence, Progress, silent, staged, unfenced
from wattmesh.reconfig.universal.folder import CheckpointKind, DataFile
from wattmesh.reconfig.universal.index import cover
from wattmesh.reconfig.universal.index.arranging import (
    MAX_FILE_BYTES,
    Arrangement,
    OutFile,
    arrange,
)
from wattmesh.reconfig.universal.index.index import Column
from wattmesh.reconfig.universal.sources.source import Source

PROCESS_BYTES = 4 << 30
"""Data per further process. One process keeps a single disk busy: on 1.3 GB two took a fifth longer
and two thirds more CPU (docs/decisions/0009-universal-checkpoint.md). Several are faster only on
file systems that are faster than one core."""

_WORK = ".work"


def write_physical(
    source: Source,
    target: Path,
    *,
    jobs: int = 0,
    max_file_bytes: int = MAX_FILE_BYTES,
    gentle: bool = False,
    progress: Progress = silent,
    fence: Fence = unfenced,
) -> Path:
    """Publish a physical checkpoint of a source.

    Args:
        source: of any kind.
        target: folder that must not exist.
        jobs: processes; 0 for one per `PROCESS_BYTES`, at most 4 and one per CPU.
        max_file_bytes: size limit of a data file, unless one tensor is larger.
        gentle: use idle CPU and disk priority (in the background of a job).
        progress: called with the bytes written since its last call, from several threads.
        fence: see `staging.staged`.

    Raises:
        InputInvalid: the source does not cover its tensors, changed meanwhile or cannot be read;
            the target cannot be written; a worker was killed. Nothing is left behind.
    """
    cover.prove(source.index)
    origin = origin_of(source)
    plan = arrange(source.index, max_file_bytes=max_file_bytes)
    with staged(target, fence) as staging:
        _make_files(staging, plan)
        try:
            replicas.compare(source.index, source.folder)
            digest = _fill(source, plan, staging, jobs or _jobs(plan), progress, gentle=gentle)
        except CheckpointDamaged as error:
            check_unchanged(source)
            raise InputInvalid(f"the source cannot be read: {error}") from error
        _fsync_files(staging, plan)
        index = replace(plan.index, segments=replace(plan.index.segments, digest=digest))
        data = {each.name: _data_file(each) for each in plan.files}
        folder.seal(staging, origin.manifest(CheckpointKind.PHYSICAL, data), index, origin.trainer)
        check_unchanged(source)
    return target


def _jobs(plan: Arrangement) -> int:
    return min(default_jobs(), 1 + plan.index.nbytes // PROCESS_BYTES)


def _make_files(staging: Path, plan: Arrangement) -> None:
    """Create every data file in its full size, with its header."""
    for each in plan.files:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(staging / each.name, flags, 0o644)
        try:
            # A full disk fails here, before anything is copied; it also reduces fragmentation.
            os.posix_fallocate(descriptor, 0, each.size)
            write_all(descriptor, memoryview(each.header), 0)
        finally:
            os.close(descriptor)


def _data_file(file: OutFile) -> DataFile:
    return DataFile(
        size=file.size,
        header_nbytes=len(file.header),
        header_xxh3_128=xxhash.xxh3_128_hexdigest(file.header),
    )


def _fsync_files(staging: Path, plan: Arrangement) -> None:
    def sync(file: OutFile) -> None:
        descriptor = os.open(staging / file.name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    if plan.files:
        with ThreadPoolExecutor(min(8, len(plan.files))) as pool:
            list(pool.map(sync, plan.files))


def _fill(
    source: Source, plan: Arrangement, into: Path, jobs: int, progress: Progress, *, gentle: bool
) -> Column:
    """Write all segments; return their digests."""
    if jobs == 1 and not gentle:
        with Files(source.folder) as files:
            filler = Filler(source.index, files, plan.index, into)
            return filler.fill(range(len(plan.index.segments)), progress)
    work = into / _WORK
    work.mkdir()
    worker.leave(source.index, work, worker.SOURCE)
    worker.leave(plan.index, work, worker.TARGET)
    share = {"folder": str(source.folder.absolute()), "into": str(into), "work": str(work)}
    shares = [{**share, "number": at, "of": jobs, "gentle": gentle} for at in range(jobs)]
    run_workers(shares, progress)
    digest = np.zeros((len(plan.index.segments), 2), dtype=np.int64)
    for at in range(jobs):
        digest[at::jobs] = np.load(worker.digests_file(work, at))
    shutil.rmtree(work)
    return digest


def run_workers(shares: list[dict[str, Any]], progress: Progress) -> None:
    """Run one process per share until all are done; one failure kills them all.

    Raises:
        InputInvalid: a process was killed from outside.
        CheckpointDamaged: the source cannot be read. OSError: the target cannot be written.
    """
    processes: list[subprocess.Popen[str]] = []
    try:
        # Own sessions: Ctrl-C reaches only this process, which then kills them.
        for _ in shares:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", worker.__name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        with ThreadPoolExecutor(len(shares)) as pool:
            follow: Callable[..., None] = _follow
            running = [
                pool.submit(follow, process, share, progress)
                for process, share in zip(processes, shares, strict=True)
            ]
            try:
                for each in as_completed(running):
                    each.result()
            except BaseException:
                _kill(processes)
                raise
    finally:
        _kill(processes)


def _follow(process: "subprocess.Popen[str]", share: dict[str, Any], progress: Progress) -> None:
    """Send a process its share, and read its messages until it ends.

    Raises:
        InputInvalid, CheckpointDamaged, OSError: see `run_workers`.
    """
    told: dict[str, Any] = {}
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("a worker was started without pipes")
    try:
        process.stdin.write(json.dumps(share) + "\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # It has ended; its exit status is reported below.
    for line in process.stdout:
        told = json.loads(line)
        progress(told.get("bytes", 0))
    process.wait()
    if told.get("done"):
        return
    if "disk" in told:
        raise OSError(told["disk"], os.strerror(told["disk"]))
    if "source" in told:
        raise CheckpointDamaged(told["source"])
    raise InputInvalid(
        f"a process of the conversion ended early (exit status {process.returncode}; -9 often "
        "means that memory ran out); nothing was written, convert again with fewer --jobs."
    )


def _kill(processes: list["subprocess.Popen[str]"]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
