"""The fence around every loop and job that writes to the journal.

A daemon that was stopped (SIGSTOP, a machine asleep) and goes on after its term still believes that
it leads, and may be in the middle of a turn: a poll whose answer came an hour ago, a month that it
was about to close. So each turn is bound to the epoch in which it began, and the journal takes
nothing of it once another daemon has taken the lead. A standby's turn is bound to the epoch that it
finds in the journal.

Invariant: no transaction of a fenced turn is committed in another epoch than that of its beginning.
What is not fenced is a machine's own: its joules, its clock, the lease itself.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from wattmesh.controller.journal.leadership import Leadership
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.errors import Fenced, JournalUnavailable

log = logging.getLogger(__name__)


class EpochFence:
    """Binds turns to the epoch in which they begin."""

    def __init__(self, leadership: Leadership, loop_facts: LoopFacts) -> None:
        """Keep the lease row, and what this daemon believes of it."""
        self._leadership, self._loop_facts = leadership, loop_facts

    def of(self, name: str, turn: Callable[[], None]) -> Callable[[], None]:
        """Fence each call of `turn`; one that is too late ends, and says so in the log."""

        def fenced() -> None:
            try:
                with self.around():
                    turn()
            except Fenced as error:
                log.info("%s: its turn ended early, %s", name, error)

        return fenced

    @contextmanager
    def around(self) -> Iterator[None]:
        """Fence a block.

        Raises:
            Fenced: another daemon has taken the lead; what was not committed is not written.
        """
        epoch = self._loop_facts.lead.epoch
        if epoch is None:
            # Where the journal does not answer, the turn finds out and says so itself.
            with suppress(JournalUnavailable):
                epoch = self._leadership.epoch()
        with self._leadership.acting(epoch):
            yield

    @contextmanager
    def last_words(self) -> Iterator[None]:
        """Fence what a daemon writes as it ends; what is too late is not worth a word."""
        with suppress(Fenced), self.around():
            yield
