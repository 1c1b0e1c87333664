"""What `wattmesh configs validate` shows of each point, and its keys for `--json`. Pure.

Invariant: a figure that is no number is null in JSON and "-" on the screen.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.configs.configs_json import catalogue_json
from wattmesh.controller.cli.output import GOOD, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.validate.results import CheckRow, PointProof
from wattmesh.controller.validate.validate import Validation

COLUMNS = (
    Column(title="CHECK"),
    Column(title="OF"),
    Column(title="MEASURED", right=True),
    Column(title="LIMIT", right=True),
    Column(title="VERDICT"),
)


def proof_lines(found: Validation, columns: int) -> Iterator[Text | str]:
    """Lay out every point's checks, its class, and what to do next."""
    for proof in found.progress.points:
        shown = proof.equivalence if proof.proven else "not validated"
        colour = GOOD if proof.proven else WARN
        yield styled((f"{proof.id} ", STRONG), (shown, colour), f"  {proof.layout}")
        if proof.checks:
            yield from table(COLUMNS, [_row(each) for each in proof.checks])
        if not proof.proven:
            yield from formats.wrapped(f"because {proof.because}", columns)
            yield from formats.wrapped(f"next: {proof.next_step}", columns)
        yield ""
    if found.progress.pairs:
        held = sum(each.ok for each in found.progress.pairs)
        yield f"{held} of {len(found.progress.pairs)} switches between two points keep every bit"
    for point, why in found.unstamped.items():
        yield from formats.wrapped(f"{point} may not be switched to: {why}", columns)
    for control, why in found.progress.lost.items():
        yield from formats.wrapped(f"{control} gave no noise: {why}", columns)


def validation_json(found: Validation, file: str) -> dict[str, Any]:
    """Return the catalogue's object with what validation adds to it."""
    return {
        **catalogue_json(found.catalogue),
        "proofs": [_proof_json(each) for each in found.progress.points],
        "unproven": found.unstamped,
        "pairs": [asdict(each) for each in found.progress.pairs],
        "lost_controls": found.progress.lost,
        "fingerprint": found.progress.fingerprint,
        "wall_s": found.wall_s,
        "file": file,
        "folder": str(found.folder),
    }


def _proof_json(proof: PointProof) -> dict[str, Any]:
    checks = [{**asdict(each), "measured": _finite(each.measured)} for each in proof.checks]
    return {**asdict(proof), "proven": proof.proven, "checks": checks}


def _row(check: CheckRow) -> list[str | Text]:
    known = _finite(check.measured)
    return [
        check.check,
        check.name,
        quantities.UNKNOWN if known is None else f"{known:.3g}",
        f"{check.limit:.3g}",
        Text("holds" if check.ok else "fails", style=GOOD if check.ok else WARN),
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
