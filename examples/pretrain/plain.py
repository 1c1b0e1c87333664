"""The same training without wattmesh, checkpoints or simulated pace, as a control for comparison.

Without a launcher it is a single process; `--layout micro_batch=1` then sums in another order.
"""

import os

import torch.distributed as dist

from examples.pretrain.options import Options
from examples.pretrain.pace import OwnPace
from examples.pretrain.train import build_state, step_row, train_step
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.step_log import StepLog


def train_plain(options: Options) -> None:
    """Train `options.steps` steps from the seed.

    Raises:
        InputInvalid: the layout needs another number of ranks than were launched.
    """
    backend = "cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    try:
        if dist.get_world_size() != options.layout.world_size:
            raise InputInvalid(
                f"pretrain: {options.layout} wants {options.layout.world_size} ranks, "
                f"{dist.get_world_size()} were launched"
            )
        _train(options)
    finally:
        # While Python ends, a thread of gloo that drops a tensor would abort the process; and
        # `destroy_process_group` alone waits for that thread with the GIL, which it may need.
        group.end()


def _train(options: Options) -> None:
    pace = OwnPace()
    log = StepLog(options.step_log if dist.get_rank() == 0 else None)
    state = build_state(options.config, options.layout, device=options.device)
    for _ in range(options.steps):
        with pace.step(options.layout, leads=True) as work:
            metrics = train_step(state)
        log.append(step_row(state, metrics, work))
        before = state.position
        state.position = Position(
            step=before.step + 1,
            samples=before.samples + metrics.samples,
            tokens=before.tokens + metrics.tokens,
        )
    log.close()
