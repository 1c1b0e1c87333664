"""Trains a run as Slurm jobs that follow each other.

    python -m wattmesh.integrations.slurm run --checkpoint-dir DIR -- train.py args...
    python -m wattmesh.integrations.slurm held --checkpoint-dir DIR
    python -m wattmesh.integrations.slurm wake --checkpoint-dir DIR --now
    python -m wattmesh.integrations.slurm free --partition NAME

`run` stands in a batch script. It starts the ranks of this job on all its nodes, starts them again
when that helps, and has the next job held where the run is to sleep or to go on in another size.
SIGTERM asks the job to checkpoint at its next boundary and end. The others are for the run's user,
on any machine that submits jobs.

Invariant: this process never imports torch, and acts at Slurm as its own user alone.
"""

import argparse
import itertools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from wattmesh.errors import InputInvalid, SourceUnavailable, WattmeshError
from wattmesh.integrations.slurm import again, epilog, free, watcher
from wattmesh.integrations.slurm.begin import StartedJob
from wattmesh.integrations.slurm.client import KEY_VARIABLE, SlurmClient
from wattmesh.integrations.slurm.job_step import StepLauncher
from wattmesh.integrations.slurm.node_answers import seconds
from wattmesh.integrations.slurm.own_job import OwnJob, own_shape, script_arguments
from wattmesh.integrations.slurm.slurm_queue import Followed, SlurmQueue
from wattmesh.integrations.slurm.wake import Sleeping, is_held, sleeping, wake
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.attempt import highest_attempt
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher import launch_book, queue_waits
from wattmesh.reconfig.launcher.command_line import (
    add_limits,
    command_of,
    on_stop,
    print_launches,
    read_count,
    say,
)
from wattmesh.reconfig.launcher.contract import HeldLaunch
from wattmesh.reconfig.launcher.launch_book import LaunchBook
from wattmesh.reconfig.launcher.supervisor import EXIT_FINISHED, EXIT_GAVE_UP, Supervisor

WATCH_S = 5.0

LOOK_EVERY = 12
"""Slurm is asked at every so many looks whether it still has the job that is to wake the run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; errors are one sentence on stderr and exit status 1."""
    chosen = _parser().parse_args(arguments)
    try:
        acts = {"run": _run, "wake": _wake, "held": _held, "free": _free, "epilog": _epilog}
        return acts[chosen.what](chosen)
    except WattmeshError as error:
        say(str(error))
        return EXIT_GAVE_UP


def _run(chosen: argparse.Namespace) -> int:
    key = os.environ.pop(KEY_VARIABLE, "")
    own = OwnJob.read(os.environ)
    shape = own_shape(os.environ, chosen.ranks_per_node)
    folder, client = RunFolder(chosen.checkpoint_dir), SlurmClient()
    followed = Followed(
        cluster=own.cluster,
        number=own.number,
        after=own.number,
        most_per_node=chosen.most_per_node or shape.per_node,
        arguments=script_arguments(),
        more=chosen.sbatch,
    )
    queue, book = SlurmQueue(client, folder, followed), LaunchBook(folder)
    job = StartedJob(
        own=own,
        folder=folder,
        key=key,
        ranks=shape.ranks,
        client=client,
        book=book,
        queue=queue,
    )
    supervisor = Supervisor(
        StepLauncher(
            shape,
            [sys.executable, "-u", *command_of(chosen)],
            client,
            own.number,
            address=chosen.address,
            more=chosen.srun,
        ),
        chosen.checkpoint_dir,
        max_restarts=chosen.max_restarts,
        stop_grace_s=chosen.stop_grace,
        say=say,
        queue=queue,
        resizes=True,
        ranks=shape.ranks,
    )
    stop = threading.Event()

    def leave() -> None:
        stop.set()
        supervisor.ask_to_stop()

    on_stop(leave)
    problem = job.claim(stop, say)
    if problem:
        say(f"job {own.number} has nothing to do: {problem}.")
        return EXIT_FINISHED
    # What the launch before asked for is answered: this is it, or it is withdrawn.
    asleep.awake(folder)
    before = highest_attempt(folder)
    status = supervisor.run()
    if supervisor.handed_over:
        if chosen.watch_asleep and folder.asleep_file.exists():
            _watch_asleep(folder, client, chosen.watcher)
        return EXIT_FINISHED
    useless = status == EXIT_GAVE_UP and 0 < highest_attempt(folder) == before
    if useless and not stop.is_set() and _tries_again(folder, queue, shape.ranks, book):
        return status
    try:
        queue.cancel(book.change(launch_book.withdraw_all))
    except WattmeshError as error:
        say(f"launches that are still held may start, and end at once: {error}")
    return status


def _tries_again(folder: RunFolder, queue: SlurmQueue, ranks: int, book: LaunchBook) -> bool:
    problem = again.hold(folder, queue, ranks, book.read())
    also = f", and no other job tries: {problem}" if problem else ": another job of the run tries."
    say(f"no rank could be started here{also}")
    return not problem


def _watch_asleep(folder: RunFolder, client: SlurmClient, more: Sequence[str]) -> None:
    try:
        number = watcher.submit(folder, client, more)
    except WattmeshError as error:
        say(f"nobody watches for orders while the run sleeps; its alarm wakes it: {error}")
        return
    say(f"job {number} wakes the run when the daemon orders it.")


def _wake(chosen: argparse.Namespace) -> int:
    folder, client = RunFolder(chosen.checkpoint_dir), SlurmClient()
    leaving, began_s = threading.Event(), time.monotonic()
    if chosen.watch and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, lambda *_: leaving.set())
    for look in itertools.count(1):
        woken = _woken(chosen, folder, client)
        if woken is not None:
            say(f"{woken.name} begins as soon as it has nodes.")
            return EXIT_FINISHED
        if not chosen.watch:
            say("the daemon orders nothing: the run sleeps on (--now wakes it all the same).")
            return EXIT_FINISHED
        leaving.wait(WATCH_S)
        found = sleeping(folder)
        if found is None:
            say("the run has begun.")
            break
        if leaving.is_set():
            if time.monotonic() - began_s >= watcher.SHORTEST_S:
                _watch_asleep(folder, client, chosen.watcher)
            break
        if look % LOOK_EVERY == 0 and _is_gone(found, client):
            say(f"the held job {found.job} is gone, so nothing is left to wake.")
            break
    return EXIT_FINISHED


def _woken(chosen: argparse.Namespace, folder: RunFolder, client: SlurmClient) -> HeldLaunch | None:
    """Wake a run if it is to be; who watches outlives a Slurm that does not answer."""
    patience_s = math.inf if chosen.watch else 0.0
    try:
        return wake(
            folder, client, chosen.ranks_per_node, now=chosen.now, say=say, patience_s=patience_s
        )
    except SourceUnavailable as error:
        if not chosen.watch:
            raise
        say(f"not known whether to wake the run: {error}; asking again.")
        return None


def _is_gone(found: Sleeping, client: SlurmClient) -> bool:
    with suppress(SourceUnavailable):
        return not is_held(found, client)
    return False


def _free(chosen: argparse.Namespace) -> int:
    if chosen.time and seconds(chosen.time) is None:
        raise InputInvalid(
            f"--time {chosen.time!r} is no limit as sbatch takes it: write 90 (minutes), "
            "12:00:00 or 1-00:00:00."
        )
    options = [f"--partition={chosen.partition}", *([f"--time={chosen.time}"] * bool(chosen.time))]
    ahead = SlurmClient().nodes_ahead(options)
    if ahead is None:
        raise InputInvalid("--partition names no partition.")
    if chosen.json:
        rows = [each.to_json() for each in free.free_nodes(ahead)]
        print(json.dumps({"at": ahead.now.isoformat(), "nodes": len(ahead.nodes), "free": rows}))
        return EXIT_FINISHED
    for sentence in free.sentences(ahead):
        print(sentence)
    return EXIT_FINISHED


def _epilog(chosen: argparse.Namespace) -> int:
    """Give clocks back; whatever goes wrong, the exit status is 0, or Slurm drains the node."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(EXIT_FINISHED))
    limit_s = chosen.limit
    if not 0 < limit_s <= epilog.MOST_LIMIT_S:
        limit_s = epilog.LIMIT_S
        say(
            f"--limit {chosen.limit:g} s is not above 0 and at most {epilog.MOST_LIMIT_S:g} s; "
            f"it takes at most {limit_s:g} s."
        )
    try:
        signal.alarm(math.ceil(limit_s) + 1)
        epilog.give_back(chosen.socket, limit_s=limit_s, say=say)
    except Exception as error:
        say(f"the epilog did not finish: {type(error).__name__}: {error}")
    return EXIT_FINISHED


def _held(chosen: argparse.Namespace) -> int:
    records = LaunchBook(RunFolder(chosen.checkpoint_dir)).told()
    if chosen.json:
        known_s = launch_book.waits_s(records)
        launches = [each.to_json() for each in records]
        bound_s = queue_waits.reacquire_s(known_s)
        print(json.dumps({"launches": launches, "waits_s": known_s, "reacquire_s": bound_s}))
        return EXIT_FINISHED
    print_launches(records)
    print(queue_waits.sentence(launch_book.waits_s(records)))
    return EXIT_FINISHED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m wattmesh.integrations.slurm",
        description="Train a run as Slurm jobs that follow each other.",
    )
    commands = parser.add_subparsers(dest="what", required=True)
    run = commands.add_parser("run", help="start this job's ranks, and have the next job held")
    add_limits(run)
    run.add_argument(
        "--most-per-node", type=read_count, help="ranks that a node takes in other sizes"
    )
    run.add_argument("--address", default="", help="of this node, as the others reach it")
    run.add_argument("--srun", action="append", default=[], help="a further word for srun")
    run.add_argument(
        "--watch-asleep",
        action="store_true",
        help="while it sleeps, a small job of yours fetches orders to wake",
    )
    run.add_argument("--sbatch", action="append", default=[], help="... for the next sbatch")
    run.add_argument("command", nargs="+", help="-- script.py args...")
    waking = commands.add_parser("wake", help="wake a run that sleeps, if the daemon orders it")
    waking.add_argument("--now", action="store_true", help="without an order too")
    waking.add_argument("--watch", action="store_true", help="ask every 5 s until it has begun")
    held = commands.add_parser("held", help="show the launches of a run, and how long they waited")
    ahead = commands.add_parser("free", help="show how many nodes are free when")
    ahead.add_argument("--partition", required=True, help="or several: a,b")
    ahead.add_argument("--time", default="", help="limit of the job, as sbatch takes it")
    ended = commands.add_parser("epilog", help="on a node, as root: give back what a job has left")
    ended.add_argument("--socket", type=Path, default=epilog.SOCKET, help="of the actuator")
    ended.add_argument("--limit", type=float, default=epilog.LIMIT_S, help="seconds")
    for each in (held, ahead):
        each.add_argument("--json", action="store_true", help="as one JSON object")
    for each in (run, waking):
        each.add_argument(
            "--watcher", action="append", default=[], help="a further word for the watcher's sbatch"
        )
        each.add_argument("--ranks-per-node", type=read_count, help="ranks of each node")
    for each in (run, waking, held):
        each.add_argument("--checkpoint-dir", type=Path, required=True, help="as given to attach")
    return parser


if __name__ == "__main__":
    sys.exit(main())
