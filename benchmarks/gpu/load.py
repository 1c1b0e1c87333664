"""A process that keeps a device at work or lets it rest, as its parent tells it line by line.

The work is matrix products on random data: zeros would draw less. Every answer is the moment, by
the clock that all processes of a machine share, from which the device does as it was told.
"""

import argparse
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

WIDTH = {"cuda": 8192, "cpu": 256}
AT_ONCE = 4
"""Products between two looks at the parent's wishes: some 6 ms on an H100."""


class Load:
    """The parent's end; a context. At rest until told otherwise."""

    def __init__(self, device: str) -> None:
        """Start the process and wait until it is warm."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.load", "--device", device],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._heard()

    def on(self) -> float:
        """Let it work; gives the monotonic second at which it began."""
        return self._told("on")

    def off(self) -> float:
        """Let it rest; gives the monotonic second at which the last product was done."""
        return self._told("off")

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _told(self, word: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return float(self._heard())

    def _heard(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the load ended with status {self._process.wait()}")
        return line


def _work(device: str) -> None:
    """Do as the parent says until it says no more."""
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    left, right = (torch.randn(WIDTH[device], WIDTH[device], device=device) for _ in range(2))
    left, right = left.to(kind), right.to(kind)
    out = torch.empty_like(left)
    _products(left, right, out)
    print("ready", flush=True)
    at_work = False
    while True:
        if not at_work or select.select([sys.stdin], [], [], 0)[0]:
            word = sys.stdin.readline().strip()
            if not word:
                return
            at_work = word == "on"
            print(time.monotonic(), flush=True)
        if at_work:
            _products(left, right, out)


def _products(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    for _ in range(AT_ONCE):
        torch.matmul(left, right, out=out)
    if out.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    _work(parser.parse_args().device)
