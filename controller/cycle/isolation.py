"""Isolates the failure of one run or node in a loop over all: it is logged, and the loop goes on.

Invariant: a journal that does not answer, or a lost lead, ends the turn. Any other failure of one
run ends only that run's part.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from wattmesh.errors import Fenced, JournalUnavailable
from wattmesh.policies.isolation import cause
from wattmesh.reconfig.ranges import clean

log = logging.getLogger(__name__)

MOST_NODES = 64
"""How many nodes' faults are kept; the oldest goes first."""

REMEMBERED = 1024
"""How many causes are remembered as logged; beyond that all may be logged again."""


class Isolation:
    """Counts failures of single runs since the start."""

    def __init__(self) -> None:
        """Start with none."""
        self.count = 0
        self._told: set[tuple[str, str]] = set()

    @contextmanager
    def alone(self, run: str, what: str) -> Iterator[None]:
        """Run the block for one run; a failure is noted and swallowed, so that a loop goes on.

        Raises:
            JournalUnavailable: the database does not answer.
            Fenced: another daemon leads.
        """
        try:
            yield
        except (JournalUnavailable, Fenced):
            raise
        except Exception as error:
            self.note(run, f"{what} failed ({cause(error)}); other runs go on")

    def note(self, run: str, sentence: str) -> None:
        """Count a failure; the same sentence about a run is logged once."""
        self.count += 1
        if (run, sentence) in self._told:
            return
        if len(self._told) >= REMEMBERED:
            self._told.clear()
        self._told.add((run, sentence))
        log.error("run %s: %s", clean(run), clean(sentence))


class NodeFaults:
    """The newest fault of each node, as a sentence; for use from any thread."""

    def __init__(self) -> None:
        """Start with none."""
        self._said: dict[str, str] = {}

    def note(self, node: str, sentence: str) -> None:
        """Keep why a node's newest delivery was refused; a repeated sentence is not logged."""
        if self._said.get(node) == sentence:
            return
        said = {**self._said, node: sentence}
        if len(said) > MOST_NODES:
            del said[next(iter(said))]
        self._said = said
        log.warning("node %s: %s; other nodes go on", clean(node), clean(sentence))

    def clear(self, node: str) -> None:
        """Delete a node's fault, because a delivery was accepted."""
        if node in self._said:
            self._said = {name: why for name, why in self._said.items() if name != node}

    def all(self) -> Mapping[str, str]:
        """Return the sentences by node."""
        return self._said
