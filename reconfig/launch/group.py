"""The process group of one generation: made from the launch's store, ended at teardown.

A generation on the same ranks and mesh as the one before takes over its groups (`may_stay`).

Invariant: at most one exists in a process, and each has its own prefix in the store, so that no
generation reads keys of another. What `reuse` keeps is forgotten with the groups it was made of.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from wattmesh.errors import NotSwitched, SwitchFailed
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.launch.failures.bounded import Attempt, within
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Ranks

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 20.0
"""How long ending groups may take before it counts as hanging; below the teardown deadline."""


def begin(
    launch_store: LaunchStore,
    number: int,
    ranks: Ranks,
    *,
    device: str,
    timeout_s: float,
    backend: str = "",
) -> None:
    """Make the process group of generation `number`; returns when all its ranks have joined.

    `backend`: as torch takes it; "" for gloo on "cpu", else gloo for CPU and NCCL for CUDA tensors.
    """
    before = sys.excepthook
    dist.init_process_group(
        backend or ("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"),
        store=launch_store.under(f"group/{number}"),
        rank=ranks.group_rank,
        world_size=ranks.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    _excepthooks.append((sys.excepthook, before))
    _made.clear()
    _groups_made.clear()


def reuse(key: Hashable, make: Callable[[], T]) -> T:
    """Return what `make` made of the present process group under `key`: meshes, groups.

    It is made once, and handed out again to the `build` of a later generation that takes these
    groups over. Without a group of `begin` it is made anew each time. Collective, as `make` is.
    """
    if not _excepthooks:  # `begin` sets one, `leave` takes it away
        return make()
    if key not in _made:
        before = {id(each) for each in torch_compat.process_groups()}
        _made[key] = make()
        _groups_made.extend(
            each for each in torch_compat.process_groups() if id(each) not in before
        )
    found: T = _made[key]
    return found


def may_stay() -> bool:
    """Return whether the groups may stay for the next generation on the same mesh. Collective.

    Only where `reuse` made all of them on every rank: a `build` that makes its own would make them
    anew each time, and nobody would end the old ones.
    """
    known = {id(each) for each in (*_groups_made, dist.group.WORLD)}
    return all(
        gather(bool(_made) and all(id(each) in known for each in torch_compat.process_groups()))
    )


_made: dict[Hashable, Any] = {}
"""What `reuse` has made of the present groups."""

_groups_made: list[dist.ProcessGroup] = []
"""The groups in it."""

_excepthooks: list[tuple[Any, Any]] = []
"""The `sys.excepthook` that torch set for the present group, and the one before it."""


def end(patience_s: float = PATIENCE_S) -> None:
    """End the process group, if there is one; peers that wait in it get an error.

    Only for a caller that holds no model wrapped for the group: see `leave`.

    Raises:
        SwitchFailed: see `leave`.
    """
    drop(leave(patience_s), patience_s)


def leave(patience_s: float = PATIENCE_S) -> list[dist.ProcessGroup]:
    """End the process group, if there is one, as `end` does; returns the groups to `drop` later.

    A model that DDP wrapped holds its group from C++. If that were the last reference, the group
    would be destroyed with the model, under the GIL, and could wait forever for a thread that needs
    the GIL. So keep these references until such a model is gone.

    A group that hangs is aborted after `patience_s` (NCCL).

    Raises:
        SwitchFailed: the group did not end even so; this process cannot begin another one.
    """
    if not dist.is_initialized():
        return []
    for set_by_torch, before in _excepthooks:
        # Each hook of torch prefixes the rank and calls the one before; torch never removes it.
        if sys.excepthook is set_by_torch:
            sys.excepthook = before
    _excepthooks.clear()
    _made.clear()
    # Held here, so that `destroy_process_group` does not drop the last reference: it could hang
    # half way, and later go on to clear the names of the next groups.
    groups = torch_compat.process_groups()
    _groups_made.clear()
    ending = Attempt(_destroy)
    if not ending.done(patience_s):
        log.error("ending the process groups takes longer than %g s: they are aborted", patience_s)
        within(patience_s, partial(_abort, groups), None)
        if not ending.done(patience_s):
            raise SwitchFailed(
                f"the process groups did not end within {2 * patience_s:g} s, though they were "
                "aborted; this process cannot make others and must be started again."
            )
    return groups


def _destroy() -> bool:
    dist.destroy_process_group()
    return True


def _abort(groups: list[dist.ProcessGroup]) -> None:
    for each in groups:
        each.abort()


def drop(groups: list[dist.ProcessGroup], patience_s: float = PATIENCE_S) -> None:
    """Drop the last references to groups and empty the list; waits for their pending calls.

    Each group gets its own thread: a gloo group also waits up to 10 ms for its event loop, and a
    layout has ten of them. A thread that hangs is left behind (a gloo group ends only after its
    pending calls, and cannot be aborted).
    """
    held = [[each] for each in groups]
    groups.clear()
    until = time.monotonic() + patience_s
    drops = [Attempt(partial(_let_go, each)) for each in held]
    if not all([each.done(max(0.0, until - time.monotonic())) for each in drops]):
        log.error(
            "a process group still waits for a call that some rank never made, after %g s; its "
            "thread and connections are left behind",
            patience_s,
        )


def _let_go(held: list[dist.ProcessGroup]) -> bool:
    held.clear()
    return True


def interrupt() -> None:
    """Abort collectives that run on CUDA; callable from another thread.

    Gloo cannot be aborted and need not be: its calls end when a peer's connections close.
    """
    world = dist.group.WORLD if dist.is_initialized() else None
    if world is not None and torch.cuda.is_available():
        torch_compat.abort_on_cuda(world)


class RankFailed(NotSwitched):
    """A rank failed in a sequence of gathers; every rank leaves the sequence with this error.

    `kind`: the kind that the failing rank gave to `give_up`.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        """Keep the kind of failure."""
        self.kind = kind
        super().__init__(message)


def gather(fact: Any, through: dist.ProcessGroup | None = None) -> list[Any]:
    """Gather every rank's JSON value on every rank, in group order, without pickle.

    `through`: a group that takes CPU tensors; None for the one that `begin` made.

    Raises:
        RankFailed: another rank called `give_up` instead.
    """
    return [json.loads(each) for each in gather_bytes(json.dumps(fact).encode(), through)]


def gather_bytes(data: bytes, through: dist.ProcessGroup | None = None) -> list[bytes]:
    """Gather every rank's bytes on every rank, in group order.

    Raises:
        RankFailed: see `gather`.
    """
    found = _exchange(_DONE + data, through)
    failure = _failure_among(found)
    if failure is not None:
        raise failure
    return [each[1:] for each in found]


def give_up(words: str, kind: str = "") -> RankFailed:
    """Take this rank out of a sequence of gathers; call it in place of the next gather.

    The other ranks get `RankFailed` from their next gather, whichever that is, and leave too. So
    all ranks make the same number of gathers, wherever any of them failed.

    Returns:
        The failure of the first rank that failed, as it is raised on every other rank.
    """
    failure = _failure_among(_exchange(_FAILED + json.dumps([kind, words]).encode()))
    assert failure is not None
    return failure


def _failure_among(found: Sequence[bytes]) -> RankFailed | None:
    for rank, each in enumerate(found):
        if each[:1] == _FAILED:
            kind, words = json.loads(each[1:])
            return RankFailed(f"{words} [group rank {rank}]", kind)
    return None


_DONE, _FAILED = b"+", b"!"


def _exchange(data: bytes, through: dist.ProcessGroup | None = None) -> list[bytes]:
    """Give every rank's bytes to every rank: to the group's first rank, and from it to all.

    That is two hops where a ring has one per rank, each of which waits for another process to be
    scheduled. Long values cost a second round, whose width the first one told.
    """
    every = _from_all(_padded(data, _SHORT), through)
    widest = _HEAD + int(every[:, :_HEAD].contiguous().view(torch.int64).max())
    # Between the two rounds a failure could not be reported, so only tensor work runs here.
    if widest > _SHORT:
        every = _from_all(_padded(data, widest + -widest % _HEAD), through)
    return [_unpadded(each) for each in every]


_HEAD = 8
"""Bytes that say how long a value is, before it."""
_SHORT = 1024
"""Values up to this size, with their head, need one round."""


def _padded(data: bytes, width: int) -> torch.Tensor:
    """Write a value with its head into a row of `width` bytes; what does not fit is left out.

    `width` is a multiple of the head, so that the heads of many rows are aligned.
    """
    row = torch.zeros(width, dtype=torch.uint8)
    row[:_HEAD] = torch.tensor([len(data)]).view(torch.uint8)
    if data:
        held = torch.frombuffer(bytearray(data[: width - _HEAD]), dtype=torch.uint8)
        row[_HEAD : _HEAD + held.numel()] = held
    return row


def _unpadded(row: torch.Tensor) -> bytes:
    length = int(row[:_HEAD].view(torch.int64))
    return row[_HEAD : _HEAD + length].numpy().tobytes()


def _from_all(row: torch.Tensor, through: dist.ProcessGroup | None) -> torch.Tensor:
    """Return the rows of all ranks, in group order: one (world, width) tensor of bytes."""
    every = row.new_empty((dist.get_world_size(through), row.numel()))
    first = dist.get_rank(through) == 0
    dist.gather(row, list(every.unbind()) if first else None, group=through, group_dst=0)
    dist.broadcast(every, group=through, group_src=0)
    return every


def mean_over_ranks(loss: Any) -> float:
    """Return the mean over ranks of a number, such as each rank's loss; a collective call.

    Args:
        loss: a tensor of one element, or a number; left as it is.
    """
    mine = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
    mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine.clone()
    dist.all_reduce(mine)
    return float(mine) / dist.get_world_size()


def agree_on_problem(problem: str) -> str:
    """Return, on every rank, the first problem of any rank; "" if none has one. Collective."""
    problems = [(rank, each) for rank, each in enumerate(gather(problem)) if each]
    if not problems:
        return ""
    rank, text = problems[0]
    more = f" (and {len(problems) - 1} more ranks)" if len(problems) > 1 else ""
    return f"{text} [group rank {rank}{more}]"
