"""A cycle observes through one port and acts through another: there is no third.

Whoever builds one gives it two, and what `Cycle` says of each other port would be another way for a
run in replay to differ from a live one.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator

from tests.laws.sources import Module, modules, parse
from wattmesh.controller.cycle.cycle import Cycle

PORTS = ["observer", "actor"]
BUILDERS = {"wattmesh.controller.daemon.wiring", "wattmesh.controller.replay.drivers"}
"""The daemon (and with it the demo and the year), and replay."""


def built(sources: Iterable[Module]) -> Iterator[tuple[str, int]]:
    """Give each place that builds a cycle, and what it gives it."""
    for source in sources:
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(func=ast.Name(id="Cycle"), args=given, keywords=named):
                    yield source.name, len(given) + len(named)


def test_a_cycle_takes_two_ports() -> None:
    """What differs between live and replay stands behind them."""
    assert list(inspect.signature(Cycle).parameters) == PORTS
    found = list(built(modules().values()))
    assert {name for name, _ in found} == BUILDERS
    assert {given for _, given in found} == {len(PORTS)}


def test_a_third_port_is_seen() -> None:
    """The sabotaged twin: a cycle that is given more."""
    assert list(built([parse("a", "Cycle(observer, actor, plans)")])) == [("a", 3)]
    assert list(built([parse("a", "Cycle(observer, actor, plans=plans)")])) == [("a", 3)]
