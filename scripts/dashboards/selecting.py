"""Pieces of PromQL that every panel uses in one way. Pure.

Two daemons on one journal serve the same sums, so a counter is `max by (...)` over the instances
(`one`); of what is true now they may tell two things for a moment, so that is the leader's word
(`told`), and a gap while nobody leads. A label `cluster` of the targets tells two sites apart, and
is empty where there is one. Invariant: no function newer than Prometheus 2.42, which Debian ships.
"""

CLUSTER = 'cluster=~"$cluster"'
RUN = f'{CLUSTER}, run="$run", run_id=~"$run_id"'
SIGNAL = f'{CLUSTER}, signal="$signal"'
RATE = "$__rate_interval"


def of(metric: str, where: str = CLUSTER, **labels: str) -> str:
    """Select a metric; `labels`: each equals a value, or a pattern that begins with ~."""
    more = [
        f'{key}={"~" if value[:1] == "~" else ""}"{value.lstrip("~")}"'
        for key, value in labels.items()
    ]
    return f"{metric}{{{', '.join([where, *more])}}}"


def one(labels: str, expression: str) -> str:
    """Count each of what two daemons tell once."""
    return f"max by ({labels}) ({expression})"


def told(labels: str, expression: str) -> str:
    """Take what is true now from the daemon that leads."""
    return one(labels, f"{expression} and on (cluster, instance) ({of('wattmesh_leader')} == 1)")


def watts(where: str = CLUSTER, **labels: str) -> str:
    """Give the power that was booked, by run and line; nothing where nothing was booked."""
    return (
        one(
            "cluster, run, run_id, line",
            f"rate({of('wattmesh_energy_joules_total', where, **labels)}[{RATE}])",
        )
        + " > 0"
    )


def grams_per_hour(where: str = CLUSTER, **labels: str) -> str:
    """Give the grams an hour, as first reported, by run and line; of an hour: slots are long."""
    return (
        one(
            "cluster, run, run_id, line, signal",
            f"rate({of('wattmesh_carbon_first_reported_grams_total', where, **labels)}[1h]) * 3600",
        )
        + " > 0"
    )


def on_nodes(metric: str, **labels: str) -> str:
    """Select a metric of single GPUs, with the node that each is in."""
    return (
        f"{of(metric, CLUSTER, **labels)} * on (cluster, instance, gpu_uuid) group_left (node) "
        f"max by (cluster, instance, gpu_uuid, node) ({of('wattmesh_gpu_info', node='~$node')})"
    )
