"""A worker of a physical conversion: `python -m wattmesh.reconfig.universal.convert.worker`.

It reads its share as one line of JSON from standard input, reports progress and its end as lines of
JSON on standard output, and writes its digests to a file. It exits when its pipe is closed.

Invariant: "done" is sent after the last byte was passed to the kernel and the digests are written.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from wattmesh.errors import WattmeshError
from wattmesh.reconfig.universal import columns
from wattmesh.reconfig.universal.convert.filling import Filler
from wattmesh.reconfig.universal.files.hashing import be_gentle
from wattmesh.reconfig.universal.files.reader import BUFFER, Files
from wattmesh.reconfig.universal.index.index import Index

SOURCE, TARGET = "source", "target"
"""Prefixes of the two indexes in the work folder."""


def leave(index: Index, work: Path, prefix: str) -> None:
    """Write an index for the workers."""
    (work / f"{prefix}.{columns.NAMES}").write_bytes(columns.names_to_bytes(index))
    (work / f"{prefix}.{columns.NUMBERS}").write_bytes(columns.numbers_to_bytes(index))


def digests_file(work: Path, number: int) -> Path:
    """Path of the digests of worker `number`."""
    return work / f"digests-{number}.npy"


def main() -> int:
    """Copy one share; returns the exit status."""
    share = json.loads(sys.stdin.readline())
    try:
        _work(share)
    except WattmeshError as error:
        _tell(source=str(error))
    except BrokenPipeError:
        os._exit(1)  # The parent is gone, so there is nobody to report to.
    except OSError as error:
        _tell(disk=error.errno or 0)
    else:
        _tell(done=True)
        return 0
    return 1


def _work(share: dict[str, Any]) -> None:
    if share["gentle"]:
        be_gentle()
    work = Path(share["work"])
    source, target = _take(work, SOURCE), _take(work, TARGET)
    rows = range(share["number"], len(target.segments), share["of"])
    told = _Told()
    with Files(Path(share["folder"])) as files:
        digest = Filler(source, files, target, Path(share["into"])).fill(rows, told)
    told.flush()
    np.save(digests_file(work, share["number"]), digest)


def _take(work: Path, prefix: str) -> Index:
    names = (work / f"{prefix}.{columns.NAMES}").read_bytes()
    numbers = (work / f"{prefix}.{columns.NUMBERS}").read_bytes()
    return columns.read(names, numbers, f"the conversion's {prefix} index")


class _Told:
    """Progress that is reported at most once per BUFFER bytes."""

    def __init__(self) -> None:
        self._untold = 0

    def __call__(self, count: int) -> None:
        self._untold += count
        if self._untold >= BUFFER:
            self.flush()

    def flush(self) -> None:
        _tell(bytes=self._untold)
        self._untold = 0


def _tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
