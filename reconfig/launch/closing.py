"""How a script's handle is closed: at interpreter exit, by `close`, or as a context manager."""

import sys
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A handle that closes once, and is told which error of the script ended it."""

    def close(self) -> None:
        """Release everything; called automatically at exit. Safe to repeat."""
        # The interpreter sets `last_value` when an uncaught error ends it.
        self._close(getattr(sys, "last_value", None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(error)

    @abstractmethod
    def _close(self, error: BaseException | None) -> None:
        """Release everything; `error` is what ended the script, if any. Safe to repeat."""
