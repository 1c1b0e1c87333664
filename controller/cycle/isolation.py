"""What is done for one run or node alone, in a loop over all: a failure is told once and passed.

Invariant: a journal that does not answer, and a lost lead, are everybody's affair and end the turn;
whatever else goes wrong with one run ends nothing but its own part.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from wattmesh.errors import Fenced, JournalUnavailable
from wattmesh.policies.isolation import cause
from wattmesh.reconfig.ranges import clean

log = logging.getLogger(__name__)

MOST_NODES = 64
"""Nodes whose faults are told."""

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


class NodeFaults:
    """What is wrong with single nodes: the newest sentence of each; for any thread."""

    def __init__(self) -> None:
        """Begin without any."""
        self._said: dict[str, str] = {}

    def note(self, node: str, sentence: str) -> None:
        """Remember why a node's newest delivery was refused; the same sentence is logged once."""
        if self._said.get(node) == sentence:
            return
        said = {**self._said, node: sentence}
        if len(said) > MOST_NODES:
            del said[next(iter(said))]
        self._said = said
        log.warning("node %s: %s; other nodes go on", clean(node), clean(sentence))

    def clear(self, node: str) -> None:
        """Forget it: a delivery was taken."""
        if node in self._said:
            self._said = {name: why for name, why in self._said.items() if name != node}

    def all(self) -> Mapping[str, str]:
        """Give the sentences by node."""
        return self._said
