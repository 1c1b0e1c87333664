"""The fake NVML for tests and the demo: make GPUs, load them, break them, read true values.

A folder holds the library that NVML's callers load and the state file they all share. Every change
is one step to every process that looks, and a process that dies in mid-change leaves none of it.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.fake_nvml.boards import BOARDS, Board, BoardModel
from wattmesh.telemetry.fake_nvml.build import LIBRARY, built
from wattmesh.telemetry.fake_nvml.gpu import FakeGpu
from wattmesh.telemetry.fake_nvml.native import (
    GPUS_MAX,
    MIG_INSTANCES,
    UUID_BYTES,
    Knob,
    StateFile,
    create_state,
)

STATE = "fake-nvml.state"
DRIVER = "595.71-fake"

FOLDER_VARIABLE = "WATTMESH_FAKE_GPUS"
"""Environment variable that names a folder of fake GPUs to a training job that paces itself."""


class FakeNvml:
    """The GPUs of one folder, and the library that shows them."""

    def __init__(self, folder: Path) -> None:
        """Open what `create` made (see `open`)."""
        self.folder = folder.resolve()
        self._session = StateFile(self.folder / STATE)
        self._gpus = tuple(FakeGpu(self._session, index) for index in range(self._session.gpus))

    @classmethod
    def create(
        cls,
        folder: Path,
        gpus: int = 8,
        board: Board | BoardModel = Board.H100,
        *,
        update_ms: int = 100,
    ) -> Self:
        """Make idle GPUs in `folder`, with the library beside them.

        Args:
            folder: made if need be; must hold no fake GPUs yet.
            gpus: 1 to 256. Their UUIDs follow from the folder's path, and stay when it moves.
            board: what kind they are.
            update_ms: how often power and counter change, 0 to 60000; 0: always up to date.

        Raises:
            InputInvalid: a number out of range, GPUs are there already, or no C compiler.
        """
        if not 1 <= gpus <= GPUS_MAX:
            raise InputInvalid(f"fake NVML: {gpus} GPUs; make 1 to {GPUS_MAX}")
        if not 0 <= update_ms <= 60_000:
            raise InputInvalid(f"fake NVML: update_ms {update_ms} must lie in 0..60000")
        model = BOARDS[board] if isinstance(board, Board) else board
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
        if (folder / STATE).exists():
            raise _occupied(folder)
        staging = folder / f".{secrets.token_hex(6)}.tmp"
        uuids = b"".join(_uuids(folder, index) for index in range(gpus))
        try:
            # A copy, not a link: the loader takes one file for one library, whatever its name,
            # and one process may hold several of these. The state comes last: with it they exist.
            shutil.copy(built().library, staging)
            staging.replace(folder / LIBRARY)
            create_state(staging, model, uuids, DRIVER, gpus=gpus, update_ms=update_ms)
            os.link(staging, folder / STATE)
        except FileExistsError:
            raise _occupied(folder) from None
        finally:
            staging.unlink(missing_ok=True)
        return cls(folder)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the GPUs that `create` made in `folder`.

        Raises:
            InputInvalid: there are none, or their file is damaged or of another version.
        """
        return cls(folder)

    @property
    def library(self) -> Path:
        """Path of the library that NVML's callers load; it finds its GPUs beside itself."""
        return self.folder / LIBRARY

    @property
    def gpus(self) -> Sequence["FakeGpu"]:
        """All GPUs, by index."""
        return self._gpus

    def environment(self) -> dict[str, str]:
        """Return this process's environment, changed so that a child loads this NVML."""
        paths = [str(self.folder), os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(each for each in paths if each)}

    def gpu(self, which: int | str) -> "FakeGpu":
        """Return a GPU by index or UUID.

        Raises:
            InputInvalid: there is no such GPU.
        """
        for gpu in self._gpus:
            if which in (gpu.index, gpu.uuid):
                return gpu
        raise InputInvalid(f"{self.folder} has no fake GPU {which}; it has {len(self._gpus)}")

    def permit(self, allowed: bool) -> None:
        """Permit the setters, or make them fail with NO_PERMISSION."""
        self._session.permit(allowed)

    def reload_driver(self) -> None:
        """Act as a reload of the driver: counters to zero, limits and clocks to default."""
        for gpu in self._gpus:
            self._session.turn(gpu.index, Knob.RELOAD)

    def close(self) -> None:
        """Close the state file; the GPUs remain."""
        self._session.close()


def _occupied(folder: Path) -> InputInvalid:
    return InputInvalid(f"{folder} holds fake GPUs already; open them, or use another folder")


def _uuids(folder: Path, index: int) -> bytes:
    """Give the UUIDs of one GPU and of its MIG instances, as the state file holds them."""
    names = []
    for part in range(1 + MIG_INSTANCES):
        name = hashlib.sha256(f"{folder}/{index}/{part}".encode()).hexdigest()
        kind = "MIG" if part else "GPU"
        groups = (name[:8], name[8:12], name[12:16], name[16:20], name[20:32])
        names.append(f"{kind}-{'-'.join(groups)}".encode().ljust(UUID_BYTES, b"\0"))
    return b"".join(names)
