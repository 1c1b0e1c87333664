"""The job of `benchmarks.failover`: two small ranks that train until they are told to stop.

    python -m wattmesh.integrations.torchrun ... -- -m benchmarks.failover.job DIR

While there is a file `wrong`, the probe of one rank alone gives another loss than before, so that
a switch to that layout is rolled back.
"""

import sys
import time
from pathlib import Path

import torch

import wattmesh
from benchmarks.quiet_day.job import BATCH, BOTH, build, probe, train_step

PACE_S = 0.05
EVERY = 100
"""Some 5 s: an order is void after three boundaries, which must be longer than a failover takes."""


def main() -> int:
    """Train to the end."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])

    def judged(state: wattmesh.State) -> float:
        alone = torch.distributed.get_world_size() == 1
        return probe(state) + (1e3 if alone and (folder / "wrong").exists() else 0.0)

    session = wattmesh.attach(
        "failover",
        build=build,
        probe=judged,
        layout=BOTH,
        checkpoint_dir=folder / "checkpoints",
        boundary_every=EVERY,
        tokens_total=10**12,
    )
    while not session.done:
        train_step(session.state)
        session.report(tokens=BATCH, samples=BATCH)
        session.boundary()
        time.sleep(PACE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
