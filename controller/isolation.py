"""What is done for one run alone, in a loop over all: a failure is counted, told once and passed.

Invariant: a journal that does not answer, and a lost lead, are everybody's affair and end the turn;
whatever else goes wrong with one run ends nothing but its own part.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from wattmesh.errors import Fenced, JournalUnavailable
from wattmesh.policies.isolation import cause
from wattmesh.reconfig.ranges import clean

log = logging.getLogger(__name__)

REMEMBERED = 1024
"""So many causes are told once each; when there are more, all may be told again."""


class Isolation:
    """Counts failures of single runs since the start."""

    def __init__(self) -> None:
        """Begin without any."""
        self.count = 0
        self._told: set[tuple[str, str]] = set()

    @contextmanager
    def alone(self, run: str, what: str) -> Iterator[None]:
        """Do something for one run; what fails is noted, and the loop goes on.

        Raises:
            JournalUnavailable: the database does not answer. Fenced: another daemon leads.
        """
        try:
            yield
        except (JournalUnavailable, Fenced):
            raise
        except Exception as error:
            self.note(run, f"{what} failed ({cause(error)}); other runs go on")

    def note(self, run: str, sentence: str) -> None:
        """Count a failure; the same sentence of a run goes to the log once."""
        self.count += 1
        if (run, sentence) in self._told:
            return
        if len(self._told) >= REMEMBERED:
            self._told.clear()
        self._told.add((run, sentence))
        log.error("run %s: %s", clean(run), clean(sentence))
