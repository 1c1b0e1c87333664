"""Measure everything that needs a GPU; write benchmarks/gpu/measured.json and docs/gpu.md.

Each part is a process of its own that is ended after eight minutes. Invariant: a part that fails
hides no other and leaves what was measured of it before; the exit status then says so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu import page
from benchmarks.gpu.chosen import Chosen
from benchmarks.gpu.machine import describe, problem
from benchmarks.report import Report, table
from wattmesh.durable import write_text
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE, FakeNvml

REPOSITORY = Path(__file__).resolve().parents[2]
MEASURED = REPOSITORY / "benchmarks" / "gpu" / "measured.json"
PAGE = REPOSITORY / "docs" / "gpu.md"
PARTS = {
    "tests": "marked",
    "sensor": "sensor",
    "memory": "memory",
    "train": "train",
    "compiled": "compiled",
    "switch": "switch",
    "switch_more": "switch_more",
}
"""Every part, and the module that measures it."""
SLICE_S = 480.0


def fake_library() -> Path | None:
    """The fake NVML's library where the environment names a folder of fake GPUs."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return FakeNvml.open(Path(folder)).library if folder else None


def run_part(name: str, chosen: Chosen) -> dict[str, Any]:
    """Measure one part in this process; gives the published object."""
    measure: Callable[[Chosen], Report] = import_module(f"benchmarks.gpu.{PARTS[name]}").measure
    where, began_s = describe(chosen), time.monotonic()
    report = measure(chosen)
    return {**report.as_json(where), "seconds": time.monotonic() - began_s}


def measured_part(name: str, options: Sequence[str]) -> dict[str, Any] | None:
    """Measure one part in a process of its own; None when it failed."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-") as folder:
        out = Path(folder) / "part.json"
        command = [sys.executable, "-m", "benchmarks.gpu", *options]
        process = subprocess.Popen([*command, "--only", name, str(out)], cwd=REPOSITORY)
        try:
            status = process.wait(SLICE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            print(f"{name}: not over within {SLICE_S:g} s", file=sys.stderr)
            return None
        if status or not out.exists():
            print(f"{name}: ended with status {status}", file=sys.stderr)
            return None
        found: dict[str, Any] = json.loads(out.read_text("utf-8"))
        return found


def merged(before: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Put a part in the place of what was measured of it before."""
    parts = {each["benchmark"]: each for each in before["parts"]}
    parts[part["benchmark"]] = part
    return {"benchmark": "gpu", "parts": [parts[name] for name in PARTS if name in parts]}


def write(measured: dict[str, Any], out: Path, written: Path | None) -> None:
    """Write the JSON, and the page where one is wanted."""
    write_text(out, json.dumps(measured, indent=1) + "\n")
    if written is not None:
        write_text(written, page.render(measured))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; 0: all ran, 1: one did not, or there is no GPU."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="default: all")
    parser.add_argument("--short", action="store_true", help="an eighth of the seconds")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, help="write the JSON here, and no page")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    parser.add_argument("--only", nargs=2, metavar=("PART", "FILE"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    chosen = Chosen(device=asked.device, short=asked.short, library=fake_library())
    out = asked.out or MEASURED
    if asked.page:
        write_text(PAGE, page.render(json.loads(out.read_text("utf-8"))))
        return 0
    why = problem() if chosen.device == "cuda" else ""
    if why:
        print(why, file=sys.stderr)
        return 1
    if asked.only:
        part, file = asked.only
        write_text(Path(file), json.dumps(run_part(part, chosen)))
        return 0
    if chosen.device == "cpu" and asked.out is None:
        parser.error("--device cpu measures no GPU; say with --out where its JSON goes")
    return _run(asked.part or list(PARTS), chosen, out, None if asked.out else PAGE)


def _run(names: Sequence[str], chosen: Chosen, out: Path, written: Path | None) -> int:
    """Run the parts one after the other; what is done is on the disk before the next begins."""
    measured: dict[str, Any] = {"benchmark": "gpu", "parts": []}
    if out.exists():
        measured = json.loads(out.read_text("utf-8"))
    options = ["--device", chosen.device, *(["--short"] if chosen.short else [])]
    failed = []
    for name in names:
        print(f"gpu {name} ...", flush=True)
        part = measured_part(name, options)
        if part is None:
            failed.append(name)
            continue
        measured = merged(measured, part)
        write(measured, out, written)
        print("\n".join(table(part["rows"])), f"\n  {part['seconds']:.0f} s", flush=True)
    if failed:
        print(f"did not run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
