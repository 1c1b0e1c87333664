"""Decides whether a switch may start its rebuild before the checkpoint is fsynced.

The ranks then load the bytes from the memory of the hosts that staged them, complete and with
digests; `background_fsync.py` makes them durable while training continues.

Invariant: never without a durable checkpoint to go back to, never if nobody would be left on a host
that holds bytes, never if memory is short.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HEADROOM = 1.5
"""Required free memory and disk, in multiples of the state: the files, and buffers."""

_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResources:
    """The resources of one rank before a switch.

    Attributes:
        state_bytes: size of this rank's pieces.
        free_bytes: free memory of its host and its own control group.
        area_bytes: memory that its staging area has already.
        disk_bytes: free space in the run's folder.
        host: its own, as `host_here` tells it.
        next_hosts: those of the ranks that train next; only the leader tells them.
        durable: the newest checkpoint on disk; "" for none.
        failed: why the last one could not be made durable; "" when it could.
    """

    state_bytes: int
    free_bytes: int
    disk_bytes: int
    host: str
    durable: str
    failed: str
    area_bytes: int = 0
    next_hosts: tuple[str, ...] = ()


def refusal(ranks: Sequence[RankResources]) -> str:
    """Say why the checkpoint must be fsynced before the teardown; "" when it need not be.

    Args:
        ranks: one per training rank.
    """
    return _left(ranks) or _nothing_behind(ranks) or _too_full(ranks)


def _left(ranks: Sequence[RankResources]) -> str:
    """Check that on each host that stages bytes a rank will be there to send them."""
    after = {host for rank in ranks for host in rank.next_hosts}
    left = sorted({rank.host.partition(" ")[0] for rank in ranks if rank.host not in after})
    if not left:
        return ""
    return f"no rank of {', '.join(left)} trains in the new layout, and none could send its share"


def _nothing_behind(ranks: Sequence[RankResources]) -> str:
    """Check that there is a durable checkpoint, and that the last fsync worked."""
    if not all(rank.durable for rank in ranks):
        return "there is no durable checkpoint to go back to yet"
    failed = next((rank.failed for rank in ranks if rank.failed), "")
    return f"the last one could not be made durable afterwards ({failed})" if failed else ""


def _too_full(ranks: Sequence[RankResources]) -> str:
    """Check that copies and buffers fit in the memory of each host, and files on the disk."""
    for host in sorted({rank.host for rank in ranks}):
        here = [rank for rank in ranks if rank.host == host]
        wanted = HEADROOM * sum(rank.state_bytes for rank in here)
        free = min(rank.free_bytes for rank in here) + sum(rank.area_bytes for rank in here)
        if free < wanted:
            name = host.partition(" ")[0]
            return f"{_mb(free)} of memory are free on {name}, {_mb(int(wanted))} are wanted"
    wanted = HEADROOM * sum(rank.state_bytes for rank in ranks)
    disk = min(rank.disk_bytes for rank in ranks)
    if disk < wanted:
        return f"{_mb(disk)} are free on the disk, {_mb(int(wanted))} are wanted"
    return ""


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def free_memory(
    meminfo: Path = Path("/proc/meminfo"),
    groups: Path = Path("/sys/fs/cgroup"),
    own: Path = Path("/proc/self/cgroup"),
) -> int:
    """Return the free memory by the kernel's estimate and the control groups' limits.

    0 where the kernel does not tell.
    """
    return min(_available(meminfo), _left_in_group(groups, own))


def _available(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else 0


def _left_in_group(groups: Path, own: Path) -> int:
    """Free memory in this process's control groups (version 2, all levels).

    Their usage includes the page cache, which can be dropped, so inactive file pages are
    subtracted.
    """
    left = _UNLIMITED
    try:
        line = own.read_text(encoding="ascii").strip().splitlines()[-1]
    except (OSError, IndexError):
        return left
    here = groups / line.partition("::")[2].lstrip("/")
    for folder in (here, *here.parents):
        try:
            limit = (folder / "memory.max").read_text(encoding="ascii").strip()
            used = int((folder / "memory.current").read_text(encoding="ascii"))
            stat = (folder / "memory.stat").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            continue
        files = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
        if limit.isdigit():
            left = min(left, int(limit) - used + files)
    return max(0, left)
