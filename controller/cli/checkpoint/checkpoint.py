"""`wattmesh checkpoint`: convert, inspect, verify, export and prune universal checkpoints.

Invariant: torch is not imported, and nothing in a checkpoint is ever executed.
"""

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.checkpoint import checkpoint_screen as screen
from wattmesh.controller.cli.output import cleaned, print_answer, print_json, print_lines
from wattmesh.controller.cli.progress import bar
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.against import differences, matches_memory
from wattmesh.reconfig.universal.convert.convert import convert
from wattmesh.reconfig.universal.convert.exporting import ExportFormat, TrainerNames, export
from wattmesh.reconfig.universal.folder import CheckpointKind, open_checkpoint
from wattmesh.reconfig.universal.index import declared
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.prune import prune
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.sources.source import Choices
from wattmesh.reconfig.universal.verify import verify

app = typer.Typer(help="Universal checkpoints: convert, inspect, verify, export, prune.")

Folder = Annotated[Path, typer.Argument(metavar="PATH", help="Folder of a checkpoint.")]
Jobs = Annotated[
    int, typer.Option("--jobs", min=0, metavar="N", help="Workers; 0: one per CPU, at most 4.")
]
Rules = Annotated[
    Path | None,
    typer.Option("--rules", metavar="FILE", help="Layout rules of a foreign source (TOML)."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="PREFIX", help="Of several models in SRC, the one to take."),
]
Optimizer = Annotated[
    str | None,
    typer.Option("--optimizer", metavar="PREFIX", help="Of several optimizers, the one to take."),
]
Shards = Annotated[
    int | None,
    typer.Option(
        "--shards", min=1, metavar="N", help="Number of files, where none of them says it."
    ),
]
Unpack = Annotated[
    Path | None,
    typer.Option(
        "--unpack", metavar="FOLDER", help="Folder to make, for what a compressed SRC holds."
    ),
]
WeightsOnly = Annotated[
    bool, typer.Option("--weights-only", help="Leave a trainer's optimizer out.")
]
Gentle = Annotated[
    bool,
    typer.Option("--gentle", help="Run at low priority, behind everything else on this machine."),
]


@app.command("convert")
def convert_source(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            help="Checkpoint: torch DCP, Hugging Face, DeepSpeed, Megatron or universal.",
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="Folder to make; must not exist.")],
    *,
    kind: Annotated[
        CheckpointKind,
        typer.Option("--kind", help="virtual: an index over SRC's files. physical: a copy."),
    ],
    jobs: Jobs = 0,
    rules: Rules = None,
    model: Model = None,
    optimizer: Optimizer = None,
    shards: Shards = None,
    unpack: Unpack = None,
    weights_only: WeightsOnly = False,
    gentle: Gentle = False,
    hashing: Annotated[
        bool,
        typer.Option(
            "--hash/--no-hash",
            help="Hash a virtual checkpoint in the background; it then counts as verified.",
        ),
    ] = True,
    as_json: options.AsJson = False,
) -> None:
    """Make a universal checkpoint from another checkpoint."""
    choices = Choices(
        model=model, optim=optimizer, shards=shards, unpack=unpack, weights_only=weights_only
    )
    opened = open_source(source, _declared(rules), choices=choices)
    if not as_json:
        print_lines([f"{opened.folder}: {opened.described}"])
    with bar(f"{kind} checkpoint", opened.index.nbytes) as progress:
        made = convert(opened, target, kind, jobs=jobs, gentle=gentle, progress=progress)
    pid = _start_hashing(target) if hashing and not made.verified else None
    print_answer(screen.converted_json(made, pid), lambda: screen.converted(made, pid), as_json)


def _start_hashing(path: Path) -> int:
    """Start a process that hashes at low priority and outlives this one; give its pid."""
    module = "wattmesh.controller.cli.main"
    words = ["checkpoint", "verify", str(path.absolute()), "--record", "--gentle"]
    to_nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    command = [sys.executable, "-m", module, *words]
    return os.posix_spawn(command[0], command, os.environ, file_actions=to_nowhere, setsid=True)


@app.command()
def inspect(
    path: Folder,
    tensor: Annotated[
        str | None,
        typer.Option("--tensor", metavar="NAME", help="Show where the bytes of one tensor are."),
    ] = None,
    *,
    rules: Rules = None,
    model: Model = None,
    optimizer: Optimizer = None,
    shards: Shards = None,
    weights_only: WeightsOnly = False,
    as_json: options.AsJson = False,
) -> None:
    """Say what a checkpoint holds, without reading its data."""
    choices = Choices(model=model, optim=optimizer, shards=shards, weights_only=weights_only)
    source = open_source(path, _declared(rules), choices=choices)
    if tensor is None:
        facts, lines = screen.facts(source), screen.facts_lines
    else:
        facts, lines = screen.boxes(source, tensor), screen.boxes_lines
    print_answer(facts, lambda: lines(cleaned(facts)), as_json)


@app.command("verify")
def verify_checkpoint(
    path: Folder,
    *,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="SRC",
            help="Also compare every tensor with this checkpoint, by a separate reader.",
        ),
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Hash a virtual checkpoint; it then counts as verified."),
    ] = False,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Also compare with the digest that the job took in memory."),
    ] = False,
    jobs: Jobs = 0,
    rules: Rules = None,
    model: Model = None,
    optimizer: Optimizer = None,
    shards: Shards = None,
    weights_only: WeightsOnly = False,
    gentle: Gentle = False,
    as_json: options.AsJson = False,
) -> None:
    """Read every byte of a checkpoint and name each tensor that is damaged."""
    begin = time.monotonic()
    with bar(f"verifying {path.name}", screen.data_nbytes(path)) as progress:
        result = verify(path, jobs=jobs, progress=progress, record_digests=record, gentle=gentle)
    different: list[str] = []
    if against is not None and not result.damage:
        choices = Choices(model=model, optim=optimizer, shards=shards, weights_only=weights_only)
        ours = open_source(path)
        theirs = open_source(against, _declared(rules), choices=choices)
        with bar("comparing", ours.index.nbytes + theirs.index.nbytes) as progress:
            different = differences(ours, theirs, jobs=jobs, progress=progress)
    if memory and not result.damage:
        different += _against_memory(path, jobs)
    wall_s = time.monotonic() - begin
    if as_json:
        print_json(screen.verified_json(path, result, against, different, wall_s))
    else:
        print_lines(screen.verified(path, result, against, different, wall_s))
    if different or not result.good:
        raise typer.Exit(1)


@app.command("export")
def export_checkpoint(
    path: Folder,
    target: Annotated[Path, typer.Argument(metavar="DST", help="Folder to make; must not exist.")],
    *,
    to: Annotated[
        ExportFormat,
        typer.Option("--to", help="hf: Hugging Face. dcp: torch. deepspeed: its universal layout."),
    ],
    dtype: Annotated[
        str, typer.Option("--dtype", help="hf: type of the parameters, float32 or bfloat16.")
    ] = "float32",
    names: Annotated[
        TrainerNames,
        typer.Option(
            "--names", help="dcp: program that will load it; it decides the tensors' names."
        ),
    ] = TrainerNames.WATTMESH,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules", metavar="FILE", help="hf: file (TOML) that renames the parameters."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a universal checkpoint in another tool's format."""
    begin = time.monotonic()
    checkpoint = open_checkpoint(path)
    with bar(f"export to {to}", checkpoint.index.nbytes) as progress:
        renames = _declared(rules).renames
        export(
            checkpoint, target, to, dtype=dtype, renames=renames, trainer=names, progress=progress
        )
    facts = screen.exported_json(checkpoint, target, to, time.monotonic() - begin)
    print_answer(facts, lambda: screen.exported(facts), as_json)


@app.command("prune")
def prune_folder(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of checkpoints.")],
    keep: Annotated[
        int,
        typer.Option("--keep", min=1, metavar="N", help="Number of newest checkpoints to keep."),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing; only say what would be done.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Delete old checkpoints, never one that is still needed."""
    verdicts = prune(folder, keep=keep, dry_run=dry_run)
    if as_json:
        print_json(screen.pruned_json(verdicts, dry_run=dry_run))
    else:
        print_lines(screen.pruned(verdicts, dry_run=dry_run))


def _against_memory(path: Path, jobs: int) -> list[str]:
    """Compare a checkpoint with what the job held when it was saved."""
    checkpoint = open_checkpoint(path)
    with bar("comparing", checkpoint.index.nbytes) as progress:
        same = matches_memory(checkpoint, jobs=jobs, progress=progress)
    if same is None:
        raise InputInvalid(
            f"{path}: no job left a digest of its memory here; verify it without --memory."
        )
    return [] if same else [f"{path} is not what the job had in memory when it was saved"]


def _declared(rules: Path | None) -> Declared:
    return declared.read(rules) if rules else Declared()
