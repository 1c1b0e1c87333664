"""What the bytes of an in-memory switch cost across two hosts, over a plain socket copy.

    python -m benchmarks.switch_hosts [--gigabytes 0.1,1,2] [--rounds 4] [--json]

Two hosts are network namespaces of this machine, joined by a pair of virtual interfaces; each has
one rank. A round is that of `switch_copy`, in two forms: from rows to columns, where half of every
share crosses the cable in short runs, and with the ranks' rows swapped, where all of it does in one
piece each. Between rounds two sockets carry as many bytes over the same cable, in both directions
at once as the switch does, from memory into memory whose pages were touched before.

`over_socket`: seconds of the sockets over those of the exchange, which finds the parts, asks for
them, and puts them into new tensors. `all over_socket`: over the whole round, with both digests,
staging and dropping. Two hosts share this machine's cores and memory: what is measured is the
program, not a network. Nothing was tuned on these figures.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from benchmarks.report import Goal, Report, run
from benchmarks.switch_copy import NAMES, NEEDED, RANKS, Rank, tensors_in
from tests.hook import hosts
from tests.hook.harness import Zygote
from wattmesh.reconfig.checkpoint.in_memory.early_rebuild import free_memory
from wattmesh.reconfig.launch import group

GIGABYTES, ROUNDS = "0.1,1,2", 4
RANK = "benchmarks.switch_hosts:rank_of_host"
PORT = 29417
SIDE = 2048
"""Tensors are square with this side, of float32: 16 MiB each, the width of a model of some 1 B."""

BLOCK = 16 << 20
FORMS = {"rows to columns": False, "rows swapped": True}
PATIENCE_S = 560.0


def crossing(count: int, *, swapped: bool) -> int:
    """Bytes that each host receives."""
    return count * len(NAMES) * 4 * SIDE**2 // RANKS // (1 if swapped else RANKS)


class Sockets:
    """A connection each way between the two hosts."""

    def __init__(self, rank: int) -> None:
        """Connect; the first host listens."""
        if rank == 0:
            with socket.create_server((hosts.address(0), PORT)) as listening:
                dist.barrier()
                self.ends = [listening.accept()[0] for _ in range(2)]
        else:
            dist.barrier()
            self.ends = [socket.create_connection((hosts.address(0), PORT)) for _ in range(2)]
        self.sends, self.receives = self.ends if rank == 0 else self.ends[::-1]

    def copied_s(self, nbytes: int) -> float:
        """Seconds to send and receive so many bytes, at once."""
        here, there = np.ones(nbytes, dtype=np.uint8).data, np.ones(nbytes, dtype=np.uint8).data
        dist.barrier()
        began_s = time.monotonic()
        sending = threading.Thread(target=self.sends.sendall, args=(here,))
        sending.start()
        while len(there):
            there = there[self.receives.recv_into(there, min(len(there), BLOCK)) :]
        sending.join()
        dist.barrier()
        return time.monotonic() - began_s


def rank_of_host() -> int:
    """Be the rank of one host: every size in both forms, and the sockets between the rounds."""
    folder, rank = Path(os.environ["FOLDER"]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=FileStore(str(folder / "store"), RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    sockets, told, number = Sockets(rank), [], 0
    for gigabytes in json.loads(os.environ["GIGABYTES"]):
        count = tensors_in(gigabytes, SIDE)
        own = Rank(rank, folder, SIDE)
        for form, swapped in FORMS.items():
            for turn in range(int(os.environ["ROUNDS"])):
                number += 1
                parts = group.gather(own.round(number, count, swapped=swapped))
                socket_s = sockets.copied_s(crossing(count, swapped=swapped))
                if turn:  # the first takes new pages
                    told.append(
                        {"gb": gigabytes, "form": form, "parts": parts, "socket_s": socket_s}
                    )
        own.memory.release()
    if rank == 0:
        (folder / "told.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def rows(gigabytes: str = GIGABYTES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """One row for each size and form."""
    sizes = [float(each) for each in gigabytes.split(",")]
    fitting = [each for each in sizes if each * 1e9 * NEEDED < free_memory()]
    zygote = Zygote()
    try:
        with tempfile.TemporaryDirectory(prefix="wattmesh-") as name:
            folder = Path(name)
            asked = {"FOLDER": name, "GIGABYTES": json.dumps(fitting), "ROUNDS": str(rounds)}
            launch = zygote.start(RANKS, asked, folder, RANK, (1, 1))
            if zygote.wait(launch, PATIENCE_S):
                logs = "\n".join(each.read_text() for each in sorted(folder.glob("rank-*.log")))
                raise RuntimeError(f"a rank failed:\n{logs}")
            told = json.loads((folder / "told.json").read_text())
    finally:
        zygote.close()
    return [
        *_rows(told),
        *({"what": f"{n} GB: no memory for it"} for n in sizes if n not in fitting),
    ]


def _rows(told: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for size, form in dict.fromkeys((each["gb"], each["form"]) for each in told):
        mine = [each for each in told if (each["gb"], each["form"]) == (size, form)]
        nbytes = crossing(tensors_in(size, SIDE), swapped=FORMS[form])

        def slowest(part: str, mine: list[dict[str, Any]] = mine) -> list[float]:
            return [max(rank[part][0] for rank in each["parts"]) for each in mine]

        across, whole = slowest("of it across hosts"), slowest("all")
        sockets = [each["socket_s"] for each in mine]
        yield {
            "what": f"{size:g} GB, {form}",
            "count": len(mine),
            "gb each way": nbytes / 1e9,
            "across hosts s": statistics.median(across),
            "all s": statistics.median(whole),
            "sockets s": statistics.median(sockets),
            "sockets gb_per_s each way": nbytes / 1e9 / statistics.median(sockets),
            "over_socket": statistics.median(b / a for a, b in zip(across, sockets, strict=True)),
            "all over_socket": statistics.median(
                b / a for a, b in zip(whole, sockets, strict=True)
            ),
        }


def measured(chosen: argparse.Namespace) -> Report:
    """Measure what the bytes of a switch cost across hosts, over sockets."""
    return report(chosen.gigabytes, chosen.rounds)


def report(gigabytes: str = GIGABYTES, rounds: int = ROUNDS) -> Report:
    """Measure every size that fits in free memory."""
    found = rows(gigabytes, rounds)
    large = [row["over_socket"] for row in found if row.get("gb each way", 0) >= 0.2]
    goal = Goal(name="hosts_over_socket", value=min(large, default=None), goal=0.7, op=">=")
    return Report(benchmark="switch_hosts", rows=tuple(found), goals=(goal,))


if __name__ == "__main__":
    sys.exit(run(measured, {"gigabytes": GIGABYTES, "rounds": ROUNDS}))
