"""Kills a writer before its n-th call into the file system, for every n, and says what is left.

    python -m tests.universal.convert.killed SCENARIO FOLDER

Each n is a child by fork, so that nothing is imported twice; what was left is judged by a reader
that knows nothing of the writer. One line of JSON: what was seen after each kill.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.universal.sources import foreign
from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal import record
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.folder import open_checkpoint
from wattmesh.reconfig.universal.prune import prune
from wattmesh.reconfig.universal.sources.source import Source
from wattmesh.reconfig.universal.verify import hash_in_background, verify

BOUNDARIES = (
    *("open", "write", "pwrite", "fsync", "fdatasync", "close", "mkdir", "rename", "replace"),
    *("link", "unlink", "rmdir", "posix_fallocate", "posix_fadvise"),
)
KILLED = 137
MOST = 400


def die_before(call: int) -> None:
    """End this process, without any tidying, before its `call`-th call of BOUNDARIES."""
    count = 0

    def wrapped(real: Callable[..., object]) -> Callable[..., object]:
        def boundary(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count == call:
                os._exit(KILLED)
            return real(*args, **kwargs)

        return boundary

    for name in BOUNDARIES:
        setattr(os, name, wrapped(getattr(os, name)))


def every_kill(prepare: Callable[[], None], act: Callable[[], None], judge: Callable[[], str],
               again: Callable[[], None]) -> list[str]:  # fmt: skip
    """Prepare, act and be killed, judge; then act once more undisturbed, which must work."""
    seen = []
    for call in range(1, MOST):
        prepare()
        child = os.fork()
        if child == 0:
            die_before(call)
            act()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        seen.append(judge())
        again()
        if status == 0:
            return seen
        if status != KILLED:
            raise RuntimeError(f"the writer ended with {status} at call {call}")
    raise RuntimeError(f"more than {MOST} calls")


def state_of(checkpoint: Path) -> str:
    """What a reader sees."""
    if not os.path.lexists(checkpoint):
        return "absent"
    try:
        opened = open_checkpoint(checkpoint)
    except CheckpointDamaged as error:
        return "no checkpoint" if not (checkpoint / "COMMIT").exists() else f"damaged: {error}"
    result = verify(checkpoint)
    if result.damage:
        return f"damaged: {result.damage[0]}"
    return "verified" if record.is_verified(opened) else "unverified"


def scenario(name: str, folder: Path) -> list[str]:
    """Run one of: virtual, physical, record, prune."""
    (folder / "src").mkdir()
    source, _ = foreign.write(folder / "src")
    before = {path: (folder / "src" / path).read_bytes() for path in source.files}
    seen = _SCENARIOS[name](source, folder)
    if any((folder / "src" / path).read_bytes() != data for path, data in before.items()):
        raise RuntimeError("the source was touched")
    return seen


def _write(write: Callable[[Source, Path], Path]) -> Callable[[Source, Path], list[str]]:
    def run(source: Source, folder: Path) -> list[str]:
        target = folder / "uc"

        def again() -> None:
            if not target.exists():
                write(source, target)
            state = state_of(target)
            if state not in ("verified", "unverified"):
                raise RuntimeError(f"not whole after writing again: {state}")

        def act() -> None:
            write(source, target)

        def prepare() -> None:
            shutil.rmtree(target, ignore_errors=True)
            for left in folder.glob(".uc.*"):
                shutil.rmtree(left)

        return every_kill(prepare, act, lambda: state_of(target), again)

    return run


def _record(source: Source, folder: Path) -> list[str]:
    target = write_virtual(source, folder / "uc")

    def prepare() -> None:
        for left in ("verified.json", "hashes.safetensors"):
            (target / left).unlink(missing_ok=True)

    def again() -> None:
        if not hash_in_background(target).good:
            raise RuntimeError("not verified after hashing again")

    def act() -> None:
        hash_in_background(target)

    return every_kill(prepare, act, lambda: state_of(target), again)


def _prune(source: Source, folder: Path) -> list[str]:
    run = folder / "run"
    run.mkdir()
    write_physical(source, run / "step-00000002")

    def prepare() -> None:
        if state_of(run / "step-00000001") != "verified":
            shutil.rmtree(run / "step-00000001", ignore_errors=True)
            write_physical(source, run / "step-00000001")

    def act() -> None:
        prune(run, keep=1)

    def judge() -> str:
        if state_of(run / "step-00000002") != "verified":
            raise RuntimeError("the newest one was touched")
        return state_of(run / "step-00000001")

    def again() -> None:
        prune(run, keep=1)
        if list(run.glob(".*.deleted")):
            raise RuntimeError("something was left")

    return every_kill(prepare, act, judge, again)


_SCENARIOS: dict[str, Callable[[Source, Path], list[str]]] = {
    "virtual": _write(write_virtual),
    "physical": _write(lambda source, target: write_physical(source, target, jobs=1)),
    "record": _record,
    "prune": _prune,
}


if __name__ == "__main__":
    # A kill loses nothing that the kernel has; waiting for the disk would only take time.
    for each in ("fsync", "fdatasync"):
        setattr(os, each, lambda descriptor: None)
    print(json.dumps(scenario(sys.argv[1], Path(sys.argv[2]))))
