"""Training data by logical position: sample `i` of seed `s` is the same bytes on any rank.

The text is the standard library's own sources, which are on every machine that runs Python.
Invariant: nothing here depends on ranks or layouts, and any position is reached at once.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from wattmesh.errors import InputInvalid


@cache
def standard_library(budget_bytes: int) -> bytes:
    """Read the standard library's modules in sorted order, `budget_bytes` of them in all.

    It reads top-level modules only: every distribution of Python has them, but not all have
    sub-packages such as the tests.

    Raises:
        InputInvalid: the modules have less text than that.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= budget_bytes:
            return bytes(text[:budget_bytes])
    raise InputInvalid(f"{folder} holds {len(text)} bytes of Python, {budget_bytes} are needed")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Windows of a text, each chosen by its global sample number."""

    text: Tensor
    seq_len: int
    seed: int

    @classmethod
    def open(cls, budget_bytes: int, seq_len: int, seed: int) -> "Corpus":
        """Open `budget_bytes` of the standard library."""
        data = bytearray(standard_library(budget_bytes))
        return cls(torch.frombuffer(data, dtype=torch.uint8).long(), seq_len, seed)

    def start(self, sample: int) -> int:
        """Return where sample `sample` starts: a hash of its number and the seed."""
        name = hashlib.blake2b(f"{self.seed}:{sample}".encode(), digest_size=8).digest()
        return int.from_bytes(name, "big") % (len(self.text) - self.seq_len)

    def batch(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return samples [first, first + count): inputs_BS, and as targets_BS the next bytes."""
        starts = torch.tensor([self.start(first + i) for i in range(count)])
        window_BS = self.text[starts[:, None] + torch.arange(self.seq_len + 1)]
        return window_BS[:, :-1].contiguous(), window_BS[:, 1:].contiguous()
