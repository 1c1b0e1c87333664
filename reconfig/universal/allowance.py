"""Limits on reading one checkpoint: bytes, objects, text and CPU seconds. One per checkpoint.

Every metadata byte that is read allows a number of objects, characters and seconds. A file that
expands to more (a list that a pickle references a thousand times, a text shared by a thousand keys)
exhausts the allowance and is refused.

Invariant: whatever the files hold, the cost of reading them is at most linear in their bytes.
"""

import time

from wattmesh.errors import InputInvalid

MAX_NBYTES = 4 << 30
"""Most metadata bytes of one checkpoint (indexes, pickles, headers); enough for 10^7 chunks."""

OBJECTS = 1 << 18
OBJECTS_PER_BYTE = 2
"""Plain values that may be created. Torch's files need at most 1.3 per byte (DCP's .metadata)."""

CONTAINER = 5
"""A list, dict, tuple, record or memo cell counts as so many plain values: it takes 60 to 110 bytes
of memory, a number 8 to 40."""

TEXT = 32 << 20
TEXT_PER_BYTE = 16
"""Characters of JSON that may be created: settings are repeated for each parameter of a group."""

CPU_S = 20.0
CPU_S_PER_MIB = 5.0
"""CPU seconds of the reading thread; genuine files take less than 0.2 per MiB."""

_LOOK_EVERY = 1 << 14


class Allowance:
    """The remaining allowance of one checkpoint. It belongs to one thread.

    Args:
        nbytes: most metadata bytes; tensor data is not counted.
        cpu_s: CPU seconds, in addition to those that bytes allow.
    """

    __slots__ = ("_begin_s", "_looked", "_objects", "_text", "cpu_s", "nbytes", "used")

    def __init__(self, *, nbytes: int = MAX_NBYTES, cpu_s: float = CPU_S) -> None:
        """Start the clock."""
        self.nbytes = nbytes
        self.cpu_s = cpu_s
        self.used = 0
        self._objects = OBJECTS
        self._text = TEXT
        self._looked = 0
        self._begin_s = time.thread_time()

    def read(self, nbytes: int, where: str) -> None:
        """Count bytes before they are read.

        Raises:
            InputInvalid: they exceed the rest; `where` names the file.
        """
        self.used += nbytes
        if self.used > self.nbytes:
            raise InputInvalid(
                f"{where}: {self.used} bytes of this checkpoint describe tensors and values, "
                f"{self.nbytes} is the most that is read; this was not written by a job, do not "
                "use it."
            )
        self._objects += OBJECTS_PER_BYTE * nbytes
        self._text += TEXT_PER_BYTE * nbytes
        self.cpu_s += CPU_S_PER_MIB * nbytes / (1 << 20)
        self.look(where)

    @property
    def objects(self) -> int:
        """Plain values that may still be created."""
        return self._objects

    def made(self, count: int, where: str) -> None:
        """Count plain values, before they are created where their number is known.

        Raises:
            InputInvalid: it is more than the bytes read so far allow.
        """
        self._objects -= count
        self._looked += count
        if self._objects < 0:
            raise InputInvalid(
                f"{where}: its {self.used} bytes name the same things over and over, to become far "
                "more in memory; no job writes that, do not use it."
            )
        if self._looked >= _LOOK_EVERY:
            self._looked = 0
            self.look(where)

    def written(self, characters: int, where: str) -> None:
        """Count text that is written to trainer.json.

        Raises:
            InputInvalid: it is more than the bytes that were read can honestly become.
        """
        self._text -= characters
        if self._text < 0:
            raise InputInvalid(
                f"{where}: its values repeat each other to far more text than the {self.used} "
                "bytes that hold them; no job writes that, do not use it."
            )

    def look(self, where: str) -> None:
        """Check the CPU time.

        Raises:
            InputInvalid: it is used up.
        """
        spent_s = time.thread_time() - self._begin_s
        if spent_s > self.cpu_s:
            raise InputInvalid(
                f"{where}: reading took {spent_s:.0f} s of processor time for {self.used} bytes, "
                f"{self.cpu_s:.0f} s is the most; no job writes files that take so long, do not "
                "use it."
            )
