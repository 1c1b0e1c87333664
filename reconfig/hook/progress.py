"""Makes the report of a step, as the leader sends it to the daemon."""

from dataclasses import replace

from wattmesh.reconfig import ranges
from wattmesh.reconfig.client.pace import Pace
from wattmesh.reconfig.hook.saves import Saves
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.wire.messages import Progress


def progress(
    generation: Generation,
    position: Position,
    saves: Saves,
    *,
    seq: int,
    pace: Pace,
    loss: float | None,
    boundary_every: int,
) -> Progress:
    """Make the report of a step."""
    saved = saves.newest
    # A staged checkpoint is not durable yet, so it is not reported to the daemon.
    known = replace(generation, step=0, digest="") if generation.staged else generation
    return Progress(
        run=generation.run,
        incarnation=generation.incarnation,
        attempt=generation.attempt,
        seq=seq,
        step=position.step,
        samples=position.samples,
        tokens=position.tokens,
        tokens_per_s=pace.tokens_per_s,
        pause_share=pace.pause_share,
        loss=loss,
        layout=generation.layout,
        ranks=generation.ranks,
        boundary_every=min(boundary_every, ranges.NEVER),
        checkpoint_step=saved.step if saved else known.step,
        checkpoint_digest=saved.digest if saved else known.digest,
        trouble=saves.trouble,
    )
