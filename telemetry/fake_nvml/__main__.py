"""`python -m wattmesh.telemetry.fake_nvml`: make fake GPUs and script them from a shell.

    python -m wattmesh.telemetry.fake_nvml make gpus --gpus 8 --board h100
    python -m wattmesh.telemetry.fake_nvml run gpus -- nvidia-smi
    python -m wattmesh.telemetry.fake_nvml load gpus 0 0.8
    python -m wattmesh.telemetry.fake_nvml lose gpus all
    python -m wattmesh.telemetry.fake_nvml show gpus --json

Exit codes: 0 done, 1 failed, 2 misuse.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.telemetry.fake_nvml import Board, FakeGpu, FakeNvml

Value = float | int | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """A subcommand for a GPU: its arguments, and the method that gets them."""

    about: str
    words: tuple[tuple[str, Callable[[str], Value]], ...]
    do: Callable[..., None]


def _switch(word: str) -> bool:
    if word not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{word!r} is neither on nor off")
    return word == "on"


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number") from None


def _whole(word: str) -> int:
    """Read a whole number, decimal or 0x..."""
    try:
        return int(word, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number") from None


def _watts(word: str) -> float | None:
    return None if word == "none" else _number(word)


def _megahertz(word: str) -> int | None:
    return None if word == "none" else _whole(word)


DEEDS = {
    "load": Deed(about="put load on it", words=(("0..1", _number),), do=FakeGpu.load),
    "draw": Deed(
        about="let it draw these watts; none: power follows clock and load again",
        words=(("watts|none", _watts),),
        do=FakeGpu.draw,
    ),
    "process": Deed(about="list a compute process", words=(("pid", _whole),), do=FakeGpu.process),
    "no-processes": Deed(
        about="list no process", words=(), do=lambda gpu: FakeGpu.processes(gpu, ())
    ),
    "reset-counter": Deed(about="set its energy to zero", words=(), do=FakeGpu.reset_counter),
    "lose": Deed(about="let it fall off the bus", words=(), do=FakeGpu.lose),
    "come-back": Deed(about="bring it back", words=(), do=FakeGpu.come_back),
    "hang": Deed(about="let each call take so long", words=(("s", _number),), do=FakeGpu.hang),
    "part-time": Deed(
        about="let its sensor see the first part of each period only",
        words=(("period-ms", _whole), ("window-ms", _whole)),
        do=FakeGpu.part_time,
    ),
    "update": Deed(
        about="let readings change so often; 0: always", words=(("ms", _whole),), do=FakeGpu.update
    ),
    "freeze-sensor": Deed(
        about="let readings repeat", words=(("on|off", _switch),), do=FakeGpu.freeze_sensor
    ),
    "without-counter": Deed(
        about="let it have no energy counter",
        words=(("on|off", _switch),),
        do=FakeGpu.without_counter,
    ),
    "mig": Deed(about="divide it into instances", words=(("on|off", _switch),), do=FakeGpu.mig),
    "virtual": Deed(about="make it a vGPU", words=(("on|off", _switch),), do=FakeGpu.virtual),
    "persistence": Deed(
        about="set persistence mode", words=(("on|off", _switch),), do=FakeGpu.persistence
    ),
    "power-profile": Deed(
        about="let a workload power profile be active",
        words=(("on|off", _switch),),
        do=FakeGpu.power_profile,
    ),
    "reasons": Deed(
        about="force clocks event reason bits", words=(("bits", _whole),), do=FakeGpu.reasons
    ),
    "foreign-limit": Deed(
        about="set its limit as another program does",
        words=(("watts", _number),),
        do=FakeGpu.foreign_limit,
    ),
    "foreign-lock": Deed(
        about="lock its clock as another program does",
        words=(("mhz|none", _megahertz),),
        do=FakeGpu.foreign_lock,
    ),
    "out-of-band-cap": Deed(
        about="cap it as a management controller does",
        words=(("watts|none", _watts),),
        do=FakeGpu.out_of_band_cap,
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Do one command and give its exit code."""
    asked = _parser().parse_args(words)
    try:
        return _do(asked)
    except WattmeshError as error:
        print(f"fake_nvml: {error}", file=sys.stderr)
        return 1


def _do(asked: argparse.Namespace) -> int:
    if asked.command == "make":
        fake = FakeNvml.create(
            asked.folder, asked.gpus, Board(asked.board), update_ms=asked.update_ms
        )
    else:
        fake = FakeNvml.open(asked.folder)
    if asked.command == "run":
        return _run(fake, asked.program)
    if asked.command == "permit":
        fake.permit(asked.allowed)
    elif asked.command == "reload-driver":
        fake.reload_driver()
    elif asked.command in DEEDS:
        deed = DEEDS[asked.command]
        for gpu in _chosen(fake, asked.gpu):
            deed.do(gpu, *(getattr(asked, name) for name, _ in deed.words))
    if asked.json:
        print(json.dumps(_as_json(fake), indent=2))
    elif asked.command in ("make", "show"):
        print(_as_lines(fake))
    return 0


def _run(fake: FakeNvml, program: Sequence[str]) -> int:
    """Replace this process (exec) by a program whose NVML is the fake one."""
    words = [word for word in program if word != "--"]
    if not words:
        raise InputInvalid("run needs a program: run FOLDER -- PROGRAM ARGUMENTS")
    try:
        os.execvpe(words[0], words, fake.environment())
    except OSError as error:
        raise InputInvalid(f"cannot run {words[0]}: {error.strerror}") from error


def _chosen(fake: FakeNvml, which: str) -> Sequence[FakeGpu]:
    if which == "all":
        return fake.gpus
    return [fake.gpu(int(which) if which.isdecimal() else which)]


def _as_json(fake: FakeNvml) -> dict[str, object]:
    gpus = [asdict(gpu.truth()) for gpu in fake.gpus]
    return {"folder": str(fake.folder), "library": str(fake.library), "gpus": gpus}


def _as_lines(fake: FakeNvml) -> str:
    lines = [f"library  {fake.library}"]
    for gpu in fake.gpus:
        truth = gpu.truth()
        marks = [name for name in ("capped", "lost", "mig") if getattr(truth, name)]
        marks += [f"locked at {truth.lock_mhz} MHz"] if truth.lock_mhz else []
        lines.append(
            f"{gpu.index:>3}  {gpu.uuid}  {truth.power_w:7.1f} W of {truth.enforced_limit_w:.0f}  "
            f"{truth.sm_clock_mhz:>4} MHz  load {truth.utilization:4.0%}  "
            f"{truth.energy_j:.1f} J drawn  {' '.join(marks)}".rstrip()
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m wattmesh.telemetry.fake_nvml",
        description="Make fake GPUs behind a libnvidia-ml.so.1 of their own, and script them.",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about, description=about)
        added.add_argument("folder", type=Path, help="folder of the GPUs")
        added.add_argument("--json", action="store_true", help="print the state after it as JSON")
        return added

    make = command("make", "make idle GPUs in a folder")
    make.add_argument("--gpus", type=_whole, default=8, help="how many, 1 to 256 (8)")
    make.add_argument("--board", choices=[each.value for each in Board], default=Board.H100.value)
    make.add_argument(
        "--update-ms", type=_whole, default=100, help="how often readings change (100)"
    )
    command("show", "show all GPUs")
    command("run", "run a program that sees them: run FOLDER -- PROGRAM ARGUMENTS").add_argument(
        "program", nargs=argparse.REMAINDER
    )
    permit = command("permit", "let setters work, or answer that the right is missing")
    permit.add_argument("allowed", type=_switch, metavar="on|off")
    command("reload-driver", "counters to zero, limits and clocks to default")
    for name, deed in DEEDS.items():
        added = command(name, deed.about)
        added.add_argument("gpu", help="index, UUID or all")
        for word, kind in deed.words:
            added.add_argument(word, type=kind)
    return parser


if __name__ == "__main__":
    sys.exit(main())
