"""Builds the library under the real `amdsmi` package, and writes what its boards tell."""

import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
NAME = re.compile(r"_libraries\['libamd_smi\.so'\]\.(\w+)")
DEFINED = re.compile(r"^uint32_t (amdsmi_\w+)\(", re.MULTILINE)


@dataclass
class Board:
    """One GPU, or one partition of a board.

    Attributes:
        ticks: of its counter at the start, each `tick_uj` microjoules.
        speed: how many times as fast as its watts its counter moves.
    """

    bdf: str
    uuid: str
    watts: int = 500
    ticks: int = 10**9
    tick_uj: float = 15.3
    percent: int = 97
    cap_uw: int = 750_000_000
    mhz: int = 2100
    pid: int = 0
    status: int = 0
    since_s: float = field(default_factory=time.monotonic)
    speed: float = 0.0

    def line(self) -> str:
        """Write it as the library reads it."""
        told = (self.watts, self.ticks, self.tick_uj, self.percent, self.cap_uw, self.mhz)
        return " ".join(
            map(str, (self.bdf, self.uuid, *told, self.pid, self.status, self.since_s, self.speed))
        )


@dataclass
class Boards:
    """All boards of a machine. `status`: what initialising returns. `hangs_s`: each call does."""

    file: Path
    boards: list[Board] = field(default_factory=list)
    status: int = 0
    hangs_s: int = 0

    def tell(self) -> None:
        """Let the library tell what stands here."""
        lines = [f"{self.status} {self.hangs_s}", *(each.line() for each in self.boards)]
        new = self.file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.file)


def build(folder: Path) -> None:
    """Make ROCM_PATH's lib/libamd_smi.so, with every symbol that the package binds."""
    spec = find_spec("amdsmi")
    assert spec is not None
    assert spec.origin is not None
    wrapper = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text("utf-8")
    own = set(DEFINED.findall((HERE / "fake.c").read_text("utf-8")))
    stubs = folder / "stubs.c"
    names = sorted(set(NAME.findall(wrapper)) - own)
    stubs.write_text("".join(f"unsigned {name}(void) {{ return 2; }}\n" for name in names))
    (folder / "lib").mkdir()
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    target = folder / "lib" / "libamd_smi.so"
    words = [compiler, "-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    words += ["-o", str(target), str(HERE / "fake.c"), str(stubs)]
    subprocess.run(words, check=True)
