"""Runs each rank's local part of a common action, so that all ranks succeed or raise together.

Each part runs on its own rank. Then a gather tells all ranks whether any failed, and all raise the
same error.

Invariant: whatever a part raises, the other ranks learn of it in the gather in which they wait.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from wattmesh.errors import Fenced, InputInvalid, NotSwitched, WattmeshError
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.failures.bounded import Attempt
from wattmesh.reconfig.launch.failures.script_line import script_line

T = TypeVar("T")


class CheckpointNotSaved(NotSwitched):
    """The checkpoint could not be written; the job trains on, and the previous one stays newest."""


class Disk:
    """A disk that may hang: each call to it is waited for up to a limit.

    A call that hangs is left behind in its thread. Until it returns, further calls fail at once.
    """

    def __init__(self, patience_s: float | None) -> None:
        """Wait for each call up to `patience_s`; None: run it in this thread, without a limit."""
        self.patience_s = patience_s
        self._hangs: Attempt[Any] | None = None

    def do(self, act: Callable[[], T]) -> T:
        """Return the result of `act`.

        Raises:
            TimeoutError: this call, or an earlier one, still hangs.
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
    """Run one rank's part; return every rank's JSON result in group order.

    Raises:
        CheckpointNotSaved: on every rank, if any failed.
    """
    result: T | None = None
    problem = ""
    try:
        result = act()
    except Exception as error:
        # Whatever it is, the other ranks wait in the gather below and must learn of it.
        problem = str(error) if isinstance(error, InputInvalid) else words(error)
    every = group.gather([problem, result])
    _raise_first([told for told, _ in every])
    return [result for _, result in every]


def leader_does(act: Callable[[], None]) -> None:
    """Run `act` on the first rank only; its failure is raised on all ranks.

    Raises:
        Fenced: `act` raised it.
        CheckpointNotSaved: `act` raised anything else.
    """
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
    """Format an error as its type and message, and the line of the user's script it came through.

    The line is written as ` (FILE:LINE)`; an error of wattmesh or torch alone has none.
    """
    line = script_line(error)
    return f"{type(error).__name__}: {error}{f' ({line})' if line else ''}"


def _raise_first(problems: Sequence[str]) -> None:
    for rank, told in enumerate(problems):
        if told:
            raise CheckpointNotSaved(_sentence(rank, told))


def _sentence(rank: int, problem: str) -> str:
    return (
        f"rank {rank} of the group could not write its part ({problem}); make room on the disk. "
        "Training goes on; the checkpoint before stays the one to restart from."
    )
