"""The batches of a run from its position on, whose loader is made once the position is known.

Invariant: no batch comes before the position is set, or from the loader of a layout that is gone.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.position import Position

Loader = Callable[[Position], Iterable[Any]]
"""Makes what gives this rank's batches from a position on, once in order or without end."""


class Batches(Iterator[Any]):
    """What `State.batches` gives: one loader after another, each from where the last one ended."""

    def __init__(self, loader: Loader | None, position: Callable[[], Position]) -> None:
        """Make nothing yet; `position`: where training stands when it is asked."""
        self._loader = loader
        self._position = position
        self._open: Iterator[Any] | None = None
        self._begun = self._closed = False

    def begin(self) -> None:
        """Let batches be read: `build` has ended, and the session has set the position."""
        self._begun = True

    def __next__(self) -> Any:
        """Give the next batch.

        Raises:
            InputInvalid: there is no loader, it gives nothing, or it is not its time.
        """
        if self._closed:
            raise InputInvalid(
                "these batches are of a layout that is gone; take session.state.batches anew for "
                "each step."
            )
        if self._loader is None:
            raise InputInvalid("state.batches: build gave no State(loader=...), which makes them.")
        if not self._begun:
            raise InputInvalid(
                "state.batches: the position is known once build has ended; read the first batch "
                "in the training step."
            )
        for _ in range(2):
            if self._open is None:
                self._open = iter(self._loader(self._position()))
            for batch in self._open:
                return batch
            self._open = None
        raise InputInvalid(
            f"State(loader=...) gave no batch from sample {self._position().samples} on; where the "
            "data ends, begin it again (position.samples % len(data))."
        )

    def close(self) -> None:
        """Let go of the loader, and of the workers it may have."""
        self._closed = True
        self._loader = self._open = None
