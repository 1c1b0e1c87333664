"""Series as promtool writes them, and the commonest case of an alert: a state that ends."""

from collections.abc import Mapping

from tests.observability.rule_files import AlertCase

HEAD, PAIR, NODE = "head-1:9464", "head-2:9464", "n1:9465"
RUN = {"run": "llama-8b", "run_id": "6d1c9d0e"}
GPU = "GPU-1"


def series(name: str, **labels: str) -> str:
    """Name a series of the daemon."""
    return named(name, {"job": "wattmesh", "instance": HEAD} | labels)


def on_node(name: str, **labels: str) -> str:
    """Name a series of an agent."""
    return named(name, {"job": "wattmesh-agent", "instance": NODE} | labels)


def named(name: str, labels: Mapping[str, str]) -> str:
    """Write a series as promtool does."""
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def flag(
    alert: str,
    of: str,
    labels: Mapping[str, str],
    summary: str,
    *,
    after: int,
    values: str = "0x4 1x{on} 0x60",
    beside: Mapping[str, str] | None = None,
) -> AlertCase:
    """A state that begins with the fifth minute, lasts for twice its `for`, and ends."""
    on = 2 * after + 10
    return AlertCase(
        alert=alert,
        series={of: values.format(on=on), **(beside or {})},
        early=4 + after,
        fires=6 + after,
        clears=6 + on,
        labels=labels,
        summary=summary,
    )


HERE = {"job": "wattmesh", "instance": HEAD}
THERE = {"job": "wattmesh-agent", "instance": NODE}
SIGNAL = {"signal": "neso:GB:average:direct:CO2", **HERE}
LEADS = series("wattmesh_leader")
STANDS_BY = series("wattmesh_leader", instance=PAIR)
BUDGET = {"budget": "cluster", **HERE}
