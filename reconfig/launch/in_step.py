"""Local parts of what all ranks do together, so that they leave it on the same branch.

Each part runs on its rank alone; then all hear whether any failed, and all raise the same.

Invariant: whatever a part raises, the other ranks hear of it in the gather that they wait in.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from wattmesh.errors import Fenced, InputInvalid, NotSwitched, WattmeshError
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.bounded import Attempt

T = TypeVar("T")


class CheckpointNotSaved(NotSwitched):
    """The checkpoint could not be written; the job trains on, the one before stays the newest."""


class Disk:
    """A disk that may hang: what is done on it is waited for so long, and not longer.

    A call that hangs is left behind in its thread. Until it comes back nothing else is tried.
    """

    def __init__(self, patience_s: float | None) -> None:
        """Wait for each call up to `patience_s`; None: however long it takes, in this thread."""
        self.patience_s = patience_s
        self._hangs: Attempt[Any] | None = None

    def do(self, act: Callable[[], T]) -> T:
        """Give what `act` gives.

        Raises:
            OSError: it takes too long, or one before still does.
            Exception: whatever `act` raised.
        """
        if self._hangs is not None:
            if not self._hangs.ended:
                raise TimeoutError("the disk still does not answer an earlier call")
            self._hangs = None
        if self.patience_s is None:
            return act()
        attempt: Attempt[list[T]] = Attempt(lambda: [act()])
        if not attempt.done(self.patience_s):
            self._hangs = attempt
            raise TimeoutError(f"the disk does not answer within {self.patience_s:g} s")
        return attempt.answer([])[0]


def together(act: Callable[[], T]) -> list[T]:
    """Run one rank's part as `alone` does; gives every rank's JSON result in group order."""
    result: T | None = None
    problem = ""
    try:
        result = act()
    except Exception as error:
        problem = words(error)
    every = group.gather([problem, result])
    _raise_first([told for told, _ in every])
    return [result for _, result in every]


def alone(act: Callable[[], T]) -> T:
    """Run one rank's part of a save; when any rank fails, every rank raises the same.

    Raises:
        CheckpointNotSaved: on every rank.
    """
    results: list[T] = []
    problem = ""
    try:
        results.append(act())
    except Exception as error:
        # Whatever it was, the other ranks wait in the gather below and must hear of it.
        problem = str(error) if isinstance(error, InputInvalid) else words(error)
    _raise_first(group.gather(problem))
    return results[0]


def leader_does(act: Callable[[], None]) -> None:
    """Run what the first rank does for all; what stopped it is raised on all."""
    told = ["", ""]
    if dist.get_rank() == 0:
        try:
            act()
        except Fenced as error:
            told = ["fenced", str(error)]
        except WattmeshError as error:
            told = ["refused", str(error)]
        except Exception as error:
            told = ["failed", _sentence(0, words(error))]
    kind, said = group.gather(told)[0]
    if kind:
        raise Fenced(said) if kind == "fenced" else CheckpointNotSaved(said)


def words(error: BaseException) -> str:
    """An error's kind and what it says."""
    return f"{type(error).__name__}: {error}"


def _raise_first(problems: Sequence[str]) -> None:
    for rank, told in enumerate(problems):
        if told:
            raise CheckpointNotSaved(_sentence(rank, told))


def _sentence(rank: int, problem: str) -> str:
    return (
        f"rank {rank} of the group could not write its part ({problem}); make room on the disk. "
        "Training goes on; the checkpoint before stays the one to restart from."
    )
