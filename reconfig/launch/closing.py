"""How what a script holds is let go of: by itself at exit, by `close`, or as a context."""

import sys
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Something that ends once, and knows by which error of the script it ends."""

    def close(self) -> None:
        """Let go of everything; called by itself at exit. Safe to repeat."""
        # Set by the interpreter when an error that nobody caught ends it.
        self._close(getattr(sys, "last_value", None))

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of everything."""
        self._close(error)

    @abstractmethod
    def _close(self, error: BaseException | None) -> None:
        """End; `error` is what ends the script, if one does. Safe to repeat."""
