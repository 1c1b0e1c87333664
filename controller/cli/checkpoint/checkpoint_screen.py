"""Screens and JSON of `wattmesh checkpoint`. It reads small files only."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import BAD, GOOD, STRONG, WARN, styled, trouble
from wattmesh.controller.cli.tables import Column, table
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal import folder, record
from wattmesh.reconfig.universal.convert.convert import Converted
from wattmesh.reconfig.universal.convert.exporting import ExportFormat
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.index import rules
from wattmesh.reconfig.universal.index.index import Index, TensorEntry
from wattmesh.reconfig.universal.prune import PruneDecision
from wattmesh.reconfig.universal.sources.source import Source
from wattmesh.reconfig.universal.verify import Result

LARGEST = 5
STATES = (
    Column(title="STATE"),
    Column(title="DTYPE"),
    Column(title="TENSORS", right=True),
    Column(title="BYTES", right=True),
)
BOXES = (
    Column(title="STATE"),
    Column(title="BOX"),
    Column(title="FILE"),
    Column(title="OFFSET", right=True),
    Column(title="BYTES", right=True),
)
VERDICTS = (
    Column(title="CHECKPOINT"),
    Column(title="BYTES", right=True),
    Column(title=""),
    Column(title="WHY"),
)

Lines = list[Text | str]


def data_nbytes(path: Path) -> int:
    """Bytes of a checkpoint's data files; 0 where it does not say.

    Raises:
        InputInvalid: there is no such folder.
    """
    if not path.is_dir():
        raise InputInvalid(f"{path}: there is no such folder.")
    try:
        return sum(each.size for each in folder.read_manifest(path).data.values())
    except CheckpointDamaged:
        return 0


def converted_json(made: Converted, hashing_pid: int | None) -> dict[str, Any]:
    """Keys of `checkpoint convert --json`."""
    return {
        "source": str(made.source.folder),
        "source_kind": made.source.kind,
        "described": made.source.described,
        "target": str(made.target),
        "kind": made.kind.value,
        "tensors": sum(made.states.values()),
        "states": dict(made.states),
        "bytes": made.nbytes,
        "wall_s": made.wall_s,
        "gb_per_s": made.nbytes / 1e9 / made.wall_s,
        "verified": made.verified,
        "hashing_pid": hashing_pid,
        "left_out": _left_out(made.source),
    }


def converted(made: Converted, hashing_pid: int | None) -> Lines:
    """What was made, and what happens next."""
    told = converted_json(made, hashing_pid)
    head = (
        f"{made.target}: {made.kind} checkpoint of {formats.plural(told['tensors'], 'tensor')}, "
        f"{quantities.size(made.nbytes)} in {quantities.duration(made.wall_s)}"
    )
    if made.verified:
        rate = quantities.figures(told["gb_per_s"])
        end = styled(("verified", GOOD), f": digests were taken while it was written, {rate} GB/s")
    elif hashing_pid is not None:
        end = styled(
            ("unverified", WARN),
            f" until process {hashing_pid} has hashed it, in the background; `wattmesh checkpoint "
            f"inspect {made.target}` says when that is done. Keep an older verified one until then",
        )
    else:
        end = styled(
            ("unverified", WARN),
            f": `wattmesh checkpoint verify {made.target} --record` hashes it; until then keep an "
            "older verified one",
        )
    rows = _states(_states_json(made.source.index.entries))
    return [*rows, *_left_out_lines(told["left_out"]), "", head, end]


def facts(source: Source) -> dict[str, Any]:
    """Keys of `checkpoint inspect --json`."""
    index = source.index
    largest = sorted(index.entries, key=lambda each: -each.nbytes)[:LARGEST]
    used = {entry.rule for entry in index.entries}
    known: dict[str, Any] = {"kind": source.kind, "source": {}, "run": "", "attempt": 0}
    verified = False
    if source.kind == "universal":
        checkpoint = folder.open_checkpoint(source.folder)
        manifest = checkpoint.manifest
        known = {
            "kind": manifest.kind.value,
            "source": manifest.source,
            "run": manifest.run,
            "attempt": manifest.attempt,
        }
        verified = record.is_verified(checkpoint)
    return {
        "folder": str(source.folder),
        "described": source.described,
        **known,
        "step": source.position.get("step"),
        "samples": source.position.get("samples"),
        "verified": verified,
        "tensors": len(index.entries),
        "bytes": index.nbytes,
        "segments": len(index.segments),
        "files": len(index.files),
        "tied": dict(index.tied),
        "left_out": _left_out(source),
        "states": _states_json(index.entries),
        "largest": [_entry(each) for each in largest],
        "rules": sorted((rules.to_json(each) for each in used), key=str),
    }


def facts_lines(told: Mapping[str, Any]) -> Lines:
    """Lay out the answer of `facts`."""
    verified = ("verified", GOOD) if told["verified"] else ("unverified", WARN)
    step = "" if told["step"] is None else f", step {formats.count(told['step'])}"
    made_from = told["source"].get("kind", "")
    origin = f", made from {made_from} {told['source'].get('folder', '')}" if made_from else ""
    ran = f", run {told['run']}, attempt {told['attempt']}" if told["run"] else ""
    lines: Lines = [
        styled((told["folder"], STRONG), f": {told['described']}{step}, ", verified),
        f"{formats.plural(told['tensors'], 'tensor')}, {quantities.size(told['bytes'])} in "
        f"{formats.plural(told['segments'], 'segment')} of {formats.plural(told['files'], 'file')}"
        f"{origin}{ran}",
        "",
        *_states(told["states"]),
        *_left_out_lines(told["left_out"]),
        "",
    ]
    for each in told["largest"]:
        shape = " x ".join(map(str, each["shape"])) or "scalar"
        lines.append(f"{each['name']} ({each['state']}): {each['dtype']} {shape}, {_size(each)}")
    declared = [each["kind"] for each in told["rules"]]
    return [*lines, "", f"layout rules: {', '.join(sorted(set(declared)))}"]


def _left_out(source: Source) -> list[str]:
    """Names of what a source holds and no checkpoint made of it does."""
    told = source.values.get("left_out")
    return [str(each) for each in told] if isinstance(told, list) else []


def _left_out_lines(names: Sequence[str]) -> Lines:
    """Say what is not in it; nothing where it is all in it."""
    if not names:
        return []
    more = f" and {len(names) - LARGEST} more" if len(names) > LARGEST else ""
    return ["", f"left out, as no tensors or plain data: {', '.join(names[:LARGEST])}{more}"]


def boxes(source: Source, tensor: str) -> dict[str, Any]:
    """Keys of `checkpoint inspect --tensor NAME --json`.

    Raises:
        InputInvalid: there is no such tensor.
    """
    index = source.index
    name = index.tied.get(tensor, tensor)
    found = [row for row, entry in enumerate(index.entries) if entry.name == name]
    if not found:
        raise InputInvalid(f"{source.folder} holds no tensor {tensor!r}; `inspect` lists some.")
    return {
        "tensor": name,
        "states": [
            {**_entry(index.entries[row]), "boxes": list(_boxes(index, row))} for row in found
        ],
    }


def boxes_lines(told: Mapping[str, Any]) -> Lines:
    """Lay out the answer of `boxes`."""
    rows = [
        (state["state"], each["box"], each["file"], formats.count(each["offset"]), _size(each))
        for state in told["states"]
        for each in state["boxes"]
    ]
    first = told["states"][0]
    return [f"{told['tensor']}: {first['dtype']} {tuple(first['shape'])}", "", *table(BOXES, rows)]


def verified_json(
    path: Path, result: Result, against: Path | None, different: Sequence[str], wall_s: float
) -> dict[str, Any]:
    """Keys of `checkpoint verify --json`."""
    return {
        "folder": str(path),
        "good": result.good and not different,
        "verified": result.good,
        "recorded": result.recorded,
        "segments": result.segments,
        "bytes": result.nbytes,
        "wall_s": wall_s,
        "damage": [asdict(each) for each in result.damage],
        "against": None if against is None else str(against),
        "different": list(different),
    }


LISTED = 20
"""Faults beyond this many are counted, not listed: a screen holds no more."""


def verified(
    path: Path, result: Result, against: Path | None, different: Sequence[str], wall_s: float
) -> Lines:
    """Lay out the result of `checkpoint verify`."""
    wrong = [*map(str, result.damage), *different]
    lines: Lines = [*trouble(wrong[:LISTED])]
    if len(wrong) > LISTED:
        lines.append(f"  and {formats.count(len(wrong) - LISTED)} more; --json lists them all")
    read = f"{formats.count(result.segments)} segments, {quantities.size(result.nbytes)}"
    if result.damage:
        lines.append(styled((str(path), STRONG), ": ", ("damaged", BAD)))
    elif not result.good:
        again = f": it was never hashed; `wattmesh checkpoint verify {path} --record` does"
        lines.append(styled((str(path), STRONG), ": ", ("unverified", WARN), again))
    else:
        how = "hashed and recorded" if result.recorded else "every byte as written"
        took = quantities.duration(wall_s)
        lines.append(
            styled((str(path), STRONG), ": ", ("good", GOOD), f", {how}: {read} in {took}")
        )
    if against is not None and not result.damage:
        same = ("differs from", BAD) if different else ("equals", GOOD)
        lines.append(styled("bit for bit it ", same, f" {against}"))
    return lines


def exported_json(
    checkpoint: Checkpoint, target: Path, to: ExportFormat, wall_s: float
) -> dict[str, Any]:
    """Keys of `checkpoint export --json`."""
    return {
        "folder": str(checkpoint.folder),
        "target": str(target),
        "format": to.value,
        "bytes": sum(each.stat().st_size for each in target.rglob("*") if each.is_file()),
        "wall_s": wall_s,
    }


def exported(told: Mapping[str, Any]) -> Lines:
    """Lay out the result of `checkpoint export`."""
    took = quantities.duration(told["wall_s"])
    return [f"{told['target']}: {told['format']}, {_size(told)} in {took}"]


def pruned_json(verdicts: Sequence[PruneDecision], *, dry_run: bool) -> dict[str, Any]:
    """Keys of `checkpoint prune --json`."""
    return {
        "dry_run": dry_run,
        "deleted": [each.name for each in verdicts if not each.kept],
        "bytes": sum(each.nbytes for each in verdicts if not each.kept),
        "checkpoints": [asdict(each) for each in verdicts],
    }


def pruned(verdicts: Sequence[PruneDecision], *, dry_run: bool) -> Lines:
    """Lay out the result of `checkpoint prune`."""
    if not verdicts:
        return ["there is no checkpoint here"]
    gone = "would go" if dry_run else "deleted"
    rows = [
        (each.name, quantities.size(each.nbytes), "kept" if each.kept else gone, each.why)
        for each in verdicts
    ]
    return [*table(VERDICTS, rows)]


def _states(states: Sequence[Mapping[str, Any]]) -> Lines:
    rows = [
        (each["state"], each["dtype"], formats.count(each["tensors"]), _size(each))
        for each in states
    ]
    return [*table(STATES, rows)]


def _states_json(entries: Sequence[TensorEntry]) -> list[dict[str, Any]]:
    count = Counter((entry.state, entry.dtype) for entry in entries)
    nbytes: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        nbytes[entry.state, entry.dtype] += entry.nbytes
    return [
        {"state": key[0], "dtype": key[1], "tensors": count[key], "bytes": nbytes[key]}
        for key in count
    ]


def _entry(entry: TensorEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "state": entry.state,
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "bytes": entry.nbytes,
    }


def _boxes(index: Index, row: int) -> Sequence[dict[str, Any]]:
    segments, rows = index.segments, index.segments_of(row)
    return [
        {
            "box": str(segments.box(each, index.entries[row])),
            "flat": bool(segments.flat[each]),
            "file": index.files[int(segments.file[each])],
            "offset": int(segments.offset[each]),
            "bytes": int(segments.nbytes[each]),
        }
        for each in range(rows.start, rows.stop)
    ]


def _size(told: Mapping[str, Any]) -> str:
    return quantities.size(told["bytes"])
