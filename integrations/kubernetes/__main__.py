"""Trains a run as Kubernetes jobs that follow each other.

    python -m wattmesh.integrations.kubernetes base --out DIR
    python -m wattmesh.integrations.kubernetes render --name NAME --image IMAGE ... -- train.py
    python -m wattmesh.integrations.kubernetes run ...       # in each pod of the job
    python -m wattmesh.integrations.kubernetes held --checkpoint-dir DIR
    python -m wattmesh.integrations.kubernetes wake --checkpoint-dir DIR --now ...

The first two are for people, anywhere. The others run in pods that have the run's folder.

Invariant: this process never imports torch, and acts at the API server as its service account.
"""

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wattmesh.errors import InputInvalid, SourceUnavailable, WattmeshError
from wattmesh.integrations.kubernetes import manifests, run
from wattmesh.integrations.kubernetes.client import ApiAddress, KubernetesClient
from wattmesh.integrations.kubernetes.job_kinds import KINDS
from wattmesh.integrations.kubernetes.job_queue import KubernetesQueue, PodJob
from wattmesh.integrations.kubernetes.manifests import JobRequest
from wattmesh.reconfig.client import waking
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.asleep import AsleepNote
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher import launch_book, patience
from wattmesh.reconfig.launcher.command_line import (
    add_limits,
    command_of,
    print_launches,
    read_count,
    read_count_or_zero,
    say,
)
from wattmesh.reconfig.launcher.contract import HeldLaunch, HeldState, NextLaunch
from wattmesh.reconfig.launcher.launch_book import LaunchBook
from wattmesh.reconfig.launcher.supervisor import EXIT_FINISHED, EXIT_GAVE_UP
from wattmesh.reconfig.launcher.torch_agent import Torchrun

STANDS = (HeldState.HELD, HeldState.STARTED)
BASE = Path(__file__).with_name("base")
WATCH_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; errors are one sentence on stderr and exit status 1."""
    chosen = _parser().parse_args(arguments)
    try:
        status: int = chosen.act(chosen)
    except (OSError, WattmeshError) as error:
        say(str(error))
        return EXIT_GAVE_UP
    return status


def _base(chosen: argparse.Namespace) -> int:
    shutil.copytree(BASE, chosen.out, dirs_exist_ok=True)
    print(f"written to {chosen.out}: apply it with `kubectl apply -k {chosen.out}`")
    return EXIT_FINISHED


def _render(chosen: argparse.Namespace) -> int:
    wanted = JobRequest(
        name=chosen.name,
        namespace=chosen.namespace,
        image=chosen.image,
        hosts=chosen.hosts,
        nproc=chosen.nproc,
        gpus=chosen.gpus,
        folder=str(chosen.checkpoint_dir),
        claim=chosen.claim,
        mount=chosen.mount,
        command=command_of(chosen),
        account=chosen.account,
        url=chosen.url,
        socket_dir=chosen.socket_dir,
        runtime=chosen.runtime,
    )
    print(json.dumps(manifests.job(KINDS[chosen.kind], wanted), indent=2))
    return EXIT_FINISHED


def _run(chosen: argparse.Namespace) -> int:
    own = _own(chosen, chosen.job)
    pod = run.Pod(
        own=own,
        job_uid=chosen.job_uid,
        host=chosen.host,
        address=chosen.address,
        folder=RunFolder(chosen.checkpoint_dir),
    )
    ranks = Torchrun(chosen.nproc, command_of(chosen))
    if pod.host:
        return run.follow(pod, ranks, say)
    try:
        return run.lead(
            pod,
            KubernetesClient(ApiAddress.of_pod(os.environ)),
            ranks,
            say,
            max_restarts=chosen.max_restarts,
            stop_grace_s=chosen.stop_grace,
        )
    except (OSError, SourceUnavailable) as error:
        say(str(error))
        return run.EXIT_AGAIN


def _wake(chosen: argparse.Namespace) -> int:
    """Let the held launch of a run begin: by an order, `--now`, or as its alarm (`--key`)."""
    folder = RunFolder(chosen.checkpoint_dir)
    client = KubernetesClient(ApiAddress.of_pod(os.environ))
    while True:
        note = asleep.read(folder.asleep_file, AsleepNote)
        key = chosen.key or (note.key if note else "")
        record = launch_book.find(LaunchBook(folder).read(), key)
        if record is None or not record.jobs:
            raise InputInvalid(f"no run sleeps in {folder.path}.")
        # The job that fell asleep may be gone by now; the one that is held is like it.
        chosen.namespace, _, held = record.jobs[-1].rpartition("/")
        queue = KubernetesQueue(client, folder, _own(chosen, held))
        if chosen.now:
            begun = queue.begin_now(key)
            if begun.state not in STANDS and not chosen.key:
                raise InputInvalid(f"{begun.name} does not begin any more: create the job again.")
            say(f"{begun.name} begins as soon as it has nodes.")
            return EXIT_FINISHED
        if note is None:
            say("the run has begun.")
            return EXIT_FINISHED
        if _ordered(folder, queue, note, math.inf if chosen.watch else 0.0) or not chosen.watch:
            return EXIT_FINISHED
        time.sleep(WATCH_S)


def _ordered(
    folder: RunFolder, queue: KubernetesQueue, note: AsleepNote, patience_s: float
) -> bool:
    """Wake a run as the daemon orders it; False: it sleeps on.

    `patience_s`: how long the API server is asked again to carry out an order that was taken.
    """
    taken = waking.begun(folder, note)
    order = waking.resume_order(folder, note, resizes=True) if taken is None else None
    if order is not None:
        taken = waking.begin(folder, note, order)
    if taken is None:
        say("the daemon orders nothing: the run sleeps on (--now wakes it all the same).")
        return False
    say(f"the run is woken: {taken.reason}")
    following = NextLaunch(key=taken.switch_id, run=note.run, ranks=len(taken.ranks))
    larger = max(taken.ranks) >= note.launched

    def begin() -> HeldLaunch:
        try:
            if larger and queue.hold(following).state in STANDS:
                return queue.begin_now(following.key)
        except InputInvalid as error:
            say(f"it wakes in the size in which it fell asleep: {error}")
        return queue.begin_now(note.key)

    # An order is taken once: left here, it would wake nobody before the alarm.
    begun = patience.until_answered(
        begin,
        lambda: asleep.read(folder.asleep_file, AsleepNote) is not None,
        say,
        patience_s,
    )
    say(f"{begun.name} begins as soon as it has nodes.")
    return True


def _held(chosen: argparse.Namespace) -> int:
    print_launches(LaunchBook(RunFolder(chosen.checkpoint_dir)).told())
    return EXIT_FINISHED


def _own(chosen: argparse.Namespace, name: str) -> PodJob:
    ring = {
        "kind": chosen.kind,
        "nproc": str(chosen.nproc),
        "checkpoint-dir": str(chosen.checkpoint_dir),
    }
    return PodJob(
        kind=KINDS[chosen.kind],
        namespace=chosen.namespace,
        name=name,
        per_host=chosen.nproc,
        ring=run.ring_words(sys.executable, ring),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m wattmesh.integrations.kubernetes",
        description="Train a run as Kubernetes jobs that follow each other.",
    )
    commands = parser.add_subparsers(required=True)
    base = commands.add_parser("base", help="write what an administrator installs")
    base.add_argument("--out", type=Path, required=True, help="folder for kustomize")
    base.set_defaults(act=_base)
    render = commands.add_parser("render", help="print the job to start with")
    render.add_argument("--name", required=True)
    render.add_argument("--image", required=True, help="with your script, torch and wattmesh")
    render.add_argument("--hosts", type=int, required=True, help="pods with ranks")
    render.add_argument("--gpus", type=int, default=0, help="GPUs of each pod")
    render.add_argument("--claim", required=True, help="a claim that all pods may write at once")
    render.add_argument("--mount", default="/runs", help="where the claim is mounted")
    render.add_argument("--account", default="wattmesh-training", help="service account")
    render.add_argument("--url", default="", help="WATTMESH_URL of the pods")
    render.add_argument("--socket-dir", default="", help="folder of the agent's socket on nodes")
    render.add_argument("--runtime", default="torch-distributed", help="of a TrainJob")
    render.set_defaults(act=_render)
    running = commands.add_parser("run", help="start this pod's ranks, and have the next job held")
    running.add_argument("--job-uid", required=True)
    running.add_argument(
        "--host", type=read_count_or_zero, required=True, help="index of this pod; 0 decides"
    )
    running.add_argument("--address", required=True, help="of this pod")
    add_limits(running)
    running.set_defaults(act=_run)
    waking_up = commands.add_parser("wake", help="wake a run that sleeps, if the daemon orders it")
    waking_up.add_argument("--now", action="store_true", help="without an order too")
    waking_up.add_argument("--watch", action="store_true", help="ask every 5 s until it has begun")
    waking_up.add_argument("--key", default="", help="of the launch; default: that of the sleep")
    waking_up.set_defaults(act=_wake)
    held = commands.add_parser("held", help="show the launches of a run")
    held.set_defaults(act=_held)
    running.add_argument("--job", required=True, help="name of the job that this pod is of")
    for each in (render, running):
        each.add_argument("--namespace", default="default")
    for each in (render, running, waking_up):
        each.add_argument("--kind", choices=sorted(KINDS), default="JobSet")
        each.add_argument("--nproc", type=read_count, required=True, help="ranks of each pod")
    for each in (render, running, waking_up, held):
        each.add_argument("--checkpoint-dir", type=Path, required=True, help="as given to attach")
    for each in (render, running):
        each.add_argument("command", nargs="+", help="-- script.py args...")
    return parser


if __name__ == "__main__":
    sys.exit(main())
