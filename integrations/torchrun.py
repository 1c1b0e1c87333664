"""A supervisor around torchrun: launches a job on one host or several, and again when that helps.

    python -m wattmesh.integrations.torchrun --nproc 4 --checkpoint-dir DIR -- script.py args...
    python -m wattmesh.integrations.torchrun --nproc 4 --hosts 2 --host 0 ...    # and --host 1

What it does when a launch ends is `reconfig/launcher/supervisor.py`'s. Of several hosts the first
decides, and the others follow it (`reconfig/launcher/hosts/`). SIGTERM to any of them asks the job
to checkpoint at its next boundary and end.

Invariant: no process of a launch is left behind when the next one starts. This process never
imports torch.
"""

import argparse
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from wattmesh.errors import WattmeshError
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.command_line import (
    add_limits,
    command_of,
    on_stop,
    read_count,
    say,
)
from wattmesh.reconfig.launcher.hosts.follower import Follower
from wattmesh.reconfig.launcher.hosts.followers import Followers
from wattmesh.reconfig.launcher.hosts.launcher import HostsLauncher
from wattmesh.reconfig.launcher.sized_clock import SizedClock
from wattmesh.reconfig.launcher.supervisor import EXIT_GAVE_UP, Supervisor
from wattmesh.reconfig.launcher.torch_agent import Torchrun


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise a job from the command line; errors are one sentence and exit status 1."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    chosen.command = command_of(chosen)
    if not chosen.command:
        parser.error("name the training script after --")
    if not 0 <= chosen.host < chosen.hosts:
        parser.error(f"--host is 0 to {chosen.hosts - 1} where --hosts is {chosen.hosts}")
    try:
        if chosen.hosts == 1:
            return _supervise(chosen)
        return _lead(chosen) if chosen.host == 0 else _follow(chosen)
    except (OSError, WattmeshError) as error:
        say(str(error))
        return EXIT_GAVE_UP


def _supervise(chosen: argparse.Namespace) -> int:
    supervisor = Supervisor(
        Torchrun(chosen.nproc, chosen.command),
        chosen.checkpoint_dir,
        max_restarts=chosen.max_restarts,
        stop_grace_s=chosen.stop_grace,
        say=say,
    )
    on_stop(supervisor.ask_to_stop)
    return supervisor.run()


def _lead(chosen: argparse.Namespace) -> int:
    folder = RunFolder(chosen.checkpoint_dir)
    clock = SizedClock(folder, chosen.hosts, chosen.nproc)
    followers = Followers(folder, chosen.address, chosen.hosts, say=say)
    ranks = Torchrun(chosen.nproc, chosen.command)
    supervisor = Supervisor(
        HostsLauncher(ranks, followers, chosen.address, clock.begin, say),
        chosen.checkpoint_dir,
        max_restarts=chosen.max_restarts,
        stop_grace_s=chosen.stop_grace,
        say=say,
        clock=clock,
        resizes=True,
    )
    on_stop(supervisor.ask_to_stop)
    followers.let_in(partial(supervisor.ask_to_stop, again_ends=False))
    status = supervisor.run()
    followers.close(status)
    return status


def _follow(chosen: argparse.Namespace) -> int:
    ranks = Torchrun(chosen.nproc, chosen.command)
    follower = Follower(RunFolder(chosen.checkpoint_dir), chosen.host, ranks, say)
    on_stop(follower.ask_to_stop)
    return follower.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m wattmesh.integrations.torchrun",
        description="Launch a training script with torchrun, and again when it asks or fails.",
    )
    parser.add_argument(
        "--nproc", type=read_count, required=True, help="ranks to start on this host"
    )
    parser.add_argument("--checkpoint-dir", type=Path, required=True, help="as given to attach")
    add_limits(parser)
    parser.add_argument("--hosts", type=read_count, default=1, help="how many hosts the run has")
    parser.add_argument("--host", type=int, default=0, help="which of them this is; 0 decides")
    parser.add_argument(
        "--address", default=socket.gethostname(), help="of host 0, as the others reach it"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- script.py args...")
    return parser


if __name__ == "__main__":
    sys.exit(main())
