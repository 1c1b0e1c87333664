"""What reading one checkpoint may cost: bytes, objects, text and seconds. Made once, handed down.

Every byte that is read to be understood earns what it may become; whatever makes more of it (a
list that a pickle names a thousand times, one text that a thousand keys share) runs out of it.

Invariant: whatever the files hold, the cost of reading them stays below a line in their bytes.
"""

import time

from wattmesh.errors import InputInvalid

MAX_NBYTES = 4 << 30
"""Most bytes of one checkpoint that are understood (indexes, pickles, headers): 10^7 chunks."""

OBJECTS = 1 << 18
OBJECTS_PER_BYTE = 2
"""Plain values that may be made. What torch writes takes 1.3 (DCP's .metadata) or less."""

CONTAINER = 5
"""A list, dict, tuple, record or memo cell counts as so many plain values; it takes 60 to 110 bytes
of memory, a number 8 to 40."""

TEXT = 32 << 20
TEXT_PER_BYTE = 16
"""Characters of JSON that may be made: settings are repeated for each parameter of their group."""

CPU_S = 20.0
CPU_S_PER_MIB = 5.0
"""Seconds of the reading thread's processor time; honest files take less than 0.2 per MiB."""

_LOOK_EVERY = 1 << 14


class Allowance:
    """What is left for one checkpoint; of one thread.

    Args:
        nbytes: most bytes that are read to be understood; data of tensors is not counted.
        cpu_s: processor seconds, beside those that bytes earn.
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
            InputInvalid: they are more than is left; `where` names the file.
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
        """Plain values that may still be made."""
        return self._objects

    def made(self, count: int, where: str) -> None:
        """Count plain values, before they are made where that is known.

        Raises:
            InputInvalid: they are more than the bytes that were read can honestly become.
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
        """Count text that goes into trainer.json.

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
        """Look at the clock.

        Raises:
            InputInvalid: the time is over.
        """
        spent_s = time.thread_time() - self._begin_s
        if spent_s > self.cpu_s:
            raise InputInvalid(
                f"{where}: reading took {spent_s:.0f} s of processor time for {self.used} bytes, "
                f"{self.cpu_s:.0f} s is the most; no job writes files that take so long, do not "
                "use it."
            )
