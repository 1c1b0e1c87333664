"""Which module of ours may import which. Pure: names in, broken rules out.

controller   -> everything below
integrations -> telemetry, reconfig, and its own file or folder
policies     -> telemetry.readings, reconfig.layout, reconfig.catalogue,
                reconfig.fingerprint
telemetry, reconfig, migrations -> nothing of another room
everybody    -> wattmesh.errors, wattmesh.durable, wattmesh.named_file, wattmesh.quantities,
                wattmesh.toml_text
nobody       -> controller
nobody       -> what only uses us or only helps to try us (`APART`)
"""

from collections.abc import Iterator, Mapping

Graph = Mapping[str, frozenset[str]]

EVERYBODY = (
    "wattmesh.errors",
    "wattmesh.durable",
    "wattmesh.named_file",
    "wattmesh.quantities",
    "wattmesh.toml_text",
)
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "controller": (
        "wattmesh",
        "wattmesh.telemetry",
        "wattmesh.reconfig",
        "wattmesh.policies",
        "wattmesh.integrations",
        "wattmesh.migrations",
    ),
    "integrations": ("wattmesh.telemetry", "wattmesh.reconfig"),
    "policies": (
        "wattmesh.telemetry.readings",
        "wattmesh.reconfig.layout",
        "wattmesh.reconfig.catalogue",
        "wattmesh.reconfig.fingerprint",
    ),
    "telemetry": (),
    "reconfig": (),
    "migrations": (),
}


APART: Mapping[str, tuple[str, ...]] = {
    "benchmarks": (),
    "examples": ("wattmesh.controller.cli.services.demo",),
    "scripts": (),
    "tests": (),
    "wattmesh.integrations.carbon.grid_server": (),
}
"""What uses us, or helps to try us, and the only modules that may import it."""

SHIPPED = "wattmesh.shipped."
"""What stands before the name of an example that an installed package brings along."""


def _is_within(name: str, package: str) -> bool:
    return name == package or (package != "wattmesh" and name.startswith(f"{package}."))


def _own(name: str) -> str:
    """Name the part whose modules may import each other: the room, or one outside system."""
    room, *rest = name.split(".")[1:]
    if room == "integrations" and rest:
        return f"wattmesh.integrations.{rest[0]}"
    return f"wattmesh.{room}"


def broken(graph: Graph) -> list[str]:
    """List every import that the directions forbid, as sentences."""
    sentences = []
    for name, targets in sorted(graph.items()):
        room = name.split(".")[1] if "." in name else ""
        if room not in ALLOWED:
            continue
        may = (*EVERYBODY, _own(name), *ALLOWED[room])
        sentences += [
            f"{name} imports {target}, which {room} may not"
            for target in sorted(targets)
            if not any(_is_within(target, package) for package in may)
        ]
    return sentences


def of_what_stands_apart(imported: Graph) -> list[str]:
    """List every import of an example or a development tool, as sentences."""
    return [
        f"{name} imports {target}, which stands apart"
        for name, targets in sorted(imported.items())
        for target in sorted(targets)
        for part, may in APART.items()
        if _is_within(target.removeprefix(SHIPPED), part)
        and not _is_within(name, part)
        and name not in may
    ]


def circles(graph: Graph) -> list[str]:
    """List every group of modules that import each other in a circle."""
    return [" <-> ".join(sorted(group)) for group in _components(graph) if len(group) > 1]


def by_package(graph: Graph) -> Graph:
    """Join the modules of each folder; one that stands beside sub-folders stands for itself."""
    folders = {name for name in graph if any(other.startswith(f"{name}.") for other in graph)}
    mixed = {folder.rpartition(".")[0] for folder in folders}

    def unit(name: str) -> str:
        folder = name.rpartition(".")[0]
        return name if name in folders or folder in mixed else folder

    joined: dict[str, set[str]] = {}
    for name, targets in graph.items():
        if name != "wattmesh":
            joined.setdefault(unit(name), set()).update(unit(each) for each in targets)
    return {name: frozenset(targets - {name, "wattmesh"}) for name, targets in joined.items()}


def _components(graph: Graph) -> Iterator[set[str]]:
    """Yield the strongly connected groups: two modules are in one when each reaches the other."""
    reach = {name: _reachable(name, graph) for name in graph}
    seen: set[str] = set()
    for name in sorted(graph):
        if name not in seen:
            group = {other for other in reach[name] if name in reach.get(other, ())} | {name}
            seen |= group
            yield group


def _reachable(start: str, graph: Graph) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def closure(start: str, graph: Graph) -> set[str]:
    """Give `start` and every module of ours that importing it may load."""
    return {start, *_reachable(start, graph)}
