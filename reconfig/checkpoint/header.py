"""The header of a run's checkpoint: whose it is, of which step, in which layout it was trained."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.placement import Placement
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.folder import TRAINER, Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header of a run's checkpoint; `placement`: of its experts, () in order of number."""

    run: str
    attempt: int
    step: int
    samples: int
    tokens: int
    layout: dict[str, Any]
    ranks: tuple[int, ...]
    digest: str
    torch: str = torch.__version__
    placement: Placement = ()

    @property
    def position(self) -> Position:
        """The training position."""
        return Position(step=self.step, samples=self.samples, tokens=self.tokens)

    def to_json(self) -> dict[str, Any]:
        """Encode it; a wattmesh from before placements reads one without a placement."""
        told = asdict(self)
        if not self.placement:
            del told["placement"]
        return told


def header_in(checkpoint: Checkpoint) -> Header:
    """Return the header of an opened checkpoint.

    Raises:
        CheckpointDamaged: it was not written by a run.
    """
    try:
        data = checkpoint.trainer["header"]
        for name in ("attempt", "step", "samples", "tokens"):
            documents.whole(data[name], name)
        for name in ("run", "digest"):
            documents.text(data[name], name)
        documents.mapping(data["layout"], "layout")
        ranks = tuple(documents.whole(each, "a rank") for each in data["ranks"])
        placement = tuple(
            tuple(documents.whole(each, "an expert") for each in rows)
            for rows in data.get("placement", ())
        )
        return Header(**{**data, "ranks": ranks, "placement": placement})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointDamaged(
            f"checkpoint {checkpoint.folder.name}: {TRAINER} has no header of a run ({error})."
        ) from error


def header_of(
    *,
    run: str,
    attempt: int,
    position: Position,
    layout: Layout,
    ranks: tuple[int, ...],
    digest: str,
    placement: Placement = (),
) -> Header:
    """Build the header of a checkpoint to be written."""
    return Header(
        run=run,
        attempt=attempt,
        step=position.step,
        samples=position.samples,
        tokens=position.tokens,
        layout=layout.to_dict(),
        ranks=ranks,
        digest=digest,
        placement=placement,
    )
