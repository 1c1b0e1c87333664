"""Pretrain under wattmesh. This is the file to copy from: lines for wattmesh are marked (w).

    python -m wattmesh.integrations.torchrun --nproc 4 -- -m examples.pretrain --layout dp_shard=4

With a daemon (`WATTMESH_URL`) the run may switch between layouts at its checkpoints; without one it
keeps the layout with which it began.
"""

import torch.distributed as dist

import wattmesh  # (w)
from examples.pretrain.options import (
    Options,
    global_rank,
    parse_options,
    take_device,
    wait_at_start_line,
)
from examples.pretrain.pace import choose_pace
from examples.pretrain.plain import train_plain
from examples.pretrain.train import build_state, probe, step_row, train_step
from wattmesh.reconfig.step_log import StepLog


def train(options: Options, starts_s: float | None) -> None:
    """Train to the last step, through all switches that are ordered."""
    config = options.config
    pace = choose_pace(global_rank(), config.tokens_per_step, options.device_tokens_per_s, starts_s)
    log = StepLog(options.step_log)

    def build(layout: wattmesh.Layout, ranks: wattmesh.Ranks) -> wattmesh.State:
        return build_state(
            config,
            layout,
            device=options.device,
            fresh=ranks.fresh,
            placement=ranks.placement,  # (w) of experts, where they are placed anew
        )

    session = wattmesh.attach(  # (w)
        options.name,
        build=build,
        probe=probe,
        layout=options.layout,
        checkpoint_dir=options.checkpoint_dir,
        boundary_every=options.boundary_every,
        tokens_total=options.steps * config.tokens_per_step,
        device=options.device,
        gpu_uuid=pace.gpu_uuid,
    )
    while not session.done:  # (w)
        leads = dist.get_rank() == 0  # of the ranks that train now
        with pace.step(session.state.parts.layout, leads=leads) as work:
            metrics = train_step(session.state)
        if leads:
            log.append(step_row(session.state, metrics, work))
        session.report(  # (w)
            tokens=metrics.tokens, samples=metrics.samples, loss=metrics.loss, data=metrics.data
        )
        session.boundary()  # (w) every `boundary_every` steps: checkpoint, and switch if ordered
    pace.end()
    log.close()


def main() -> None:
    """Read the command line and train."""
    options = parse_options()
    take_device(options.device)
    starts_s = wait_at_start_line(options.wait_for)
    if options.plain:
        train_plain(options)
    else:
        train(options, starts_s)


if __name__ == "__main__":
    main()
