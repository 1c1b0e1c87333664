"""Cases of the alerts on GPUs, nodes, budgets and grid signals."""

from tests.observability.rule_files import AlertCase
from tests.observability.rule_series import (
    BUDGET,
    GPU,
    HERE,
    NODE,
    SIGNAL,
    THERE,
    flag,
    on_node,
    series,
)

GPUS = (
    flag(
        "WattmeshAgentDown",
        on_node("up"),
        THERE,
        f"The agent at {NODE} does not answer Prometheus",
        after=5,
        values="1x4 0x{on} 1x60",
    ),
    AlertCase(
        alert="WattmeshNodeSilent",
        series={series("wattmesh_node_silent_seconds", node="n17"): "_x4 60+60x20 stale"},
        early=7,
        fires=10,
        clears=26,
        labels={"node": "n17", "job": "wattmesh"},
        summary="The daemon has not heard the agent of n17 for 7m 0s",
    ),
    AlertCase(
        alert="WattmeshDeliveryStands",
        series={
            on_node("wattmesh_agent_controller_age_seconds", of="delivery"): "5x4 60+60x40 5x20",
        },
        early=23,
        fires=26,
        clears=47,
        labels={"of": "delivery", **THERE},
        summary=f"The daemon has taken nothing from the agent at {NODE} for 22m 0s",
    ),
    AlertCase(
        alert="WattmeshOutboxFull",
        series={
            on_node("wattmesh_agent_outbox_bytes", kind="limit"): "100x80",
            on_node("wattmesh_agent_outbox_bytes", kind="used"): "10x4 95x30 10x40",
        },
        early=19,
        fires=21,
        clears=36,
        labels=THERE,
        summary=f"The outbox of the agent at {NODE} is 95% full",
    ),
    flag(
        "WattmeshGpuCounterStale",
        on_node("wattmesh_gpu_counter_fault", reason="stale", gpu_uuid=GPU),
        {"reason": "stale", "gpu_uuid": GPU, **THERE},
        f"The sensor of {GPU} at {NODE} stands still",
        after=5,
    ),
    flag(
        "WattmeshGpuLost",
        on_node("wattmesh_gpu_counter_fault", reason="lost", gpu_uuid=GPU),
        {"reason": "lost", "gpu_uuid": GPU, **THERE},
        f"{GPU} at {NODE} does not answer",
        after=5,
    ),
    AlertCase(
        alert="WattmeshEnergyUnobserved",
        series={
            on_node("wattmesh_gpu_unobserved_seconds_total", gpu_uuid=GPU): "0x4 0+30x40 1200x40",
        },
        early=12,
        fires=30,
        clears=60,
        labels={"gpu_uuid": GPU, **THERE},
        summary=f"50% of the time of {GPU} at {NODE} is measured by nobody",
    ),
    AlertCase(
        alert="WattmeshCoverageLost",
        series={
            series("wattmesh_coverage_gpus", state="expected"): "64x60",
            series("wattmesh_coverage_gpus", state="seen"): "64x4 56x20 64x30",
        },
        early=14,
        fires=16,
        clears=26,
        labels={"job": "wattmesh"},
        summary="8 GPUs that were read before are not read now",
    ),
    flag(
        "WattmeshForeignWriter",
        on_node("wattmesh_gpu_fault", fault="foreign", gpu_uuid=GPU),
        {"fault": "foreign", "gpu_uuid": GPU, **THERE},
        f"Someone else sets the clock or the power limit of {GPU} at {NODE}",
        after=2,
    ),
    flag(
        "WattmeshRestoreFailed",
        on_node("wattmesh_gpu_fault", fault="restore", gpu_uuid=GPU),
        {"fault": "restore", "gpu_uuid": GPU, **THERE},
        f"What wattmesh set on {GPU} at {NODE} could not be taken back",
        after=2,
    ),
    flag(
        "WattmeshRowsRefused",
        on_node("wattmesh_agent_refused_rows"),
        THERE,
        "An agent keeps back 7 ledger rows that the daemon refuses",
        after=15,
        values="0x4 7x{on} 0x60",
    ),
    flag(
        "WattmeshActuatorsFenced",
        series("wattmesh_actuators_fenced", reason="journal"),
        {"reason": "journal", **HERE},
        "2 actuators obey another journal than this daemon's",
        after=5,
        values="0x4 2x{on} 0x60",
    ),
    flag(
        "WattmeshPowerCapNotKept",
        series("wattmesh_power_cap_kept"),
        HERE,
        "GPUs may draw more than the power cap that an operator set",
        after=1,
        values="1x4 0x{on} 1x60",
    ),
)


def burning(
    alert: str, urgency: str, *, after: int, beside: tuple[str, str], says: str
) -> AlertCase:
    """An alert of a budget, with the figure that its sentence quotes."""
    found = flag(
        alert,
        series("wattmesh_budget_alert", budget="cluster", urgency=urgency),
        {"urgency": urgency, **BUDGET},
        f"Budget cluster {says}",
        after=after,
    )
    return AlertCase(
        alert=found.alert,
        series={**found.series, beside[0]: f"{beside[1]}x300"},
        early=found.early,
        fires=found.fires,
        clears=found.clears,
        labels=found.labels,
        summary=found.summary,
    )


def burn(window: str) -> str:
    """Name the burn of the budget over a window."""
    return series("wattmesh_budget_burn_ratio", budget="cluster", window=window)


BUDGETS = (
    burning(
        "WattmeshBudgetFastBurn",
        "fast",
        after=5,
        beside=(burn("24h"), "2.3"),
        says="burns at over twice its plan, for 6 h and for 24 h (2.3x in 24 h)",
    ),
    burning(
        "WattmeshBudgetSlowBurn",
        "slow",
        after=60,
        beside=(burn("72h"), "1.2"),
        says="burns above its plan, for three days and for seven (1.2x in 72 h)",
    ),
    burning(
        "WattmeshBudgetExhausted",
        "exhausted",
        after=5,
        beside=(series("wattmesh_budget_residual_grams", budget="cluster"), "-40"),
        says="is used up before the end of its period (-40 g left)",
    ),
)

SIGNALS = (
    flag(
        "WattmeshGridSignalRefused",
        series("wattmesh_grid_poll_state", state="refused", signal=SIGNAL["signal"]),
        {"state": "refused", **SIGNAL},
        f"{SIGNAL['signal']} is refused by its provider until a person mends it",
        after=5,
    ),
    AlertCase(
        alert="WattmeshGridSignalSilent",
        series={
            series("wattmesh_grid_signal_age_seconds", signal=SIGNAL["signal"]): "60x4 7260x20 "
            "60x20"
        },
        early=9,
        fires=11,
        clears=26,
        labels=SIGNAL,
        summary=f"{SIGNAL['signal']} has not been heard for 2h 1m 0s",
    ),
    flag(
        "WattmeshGridSignalUnusable",
        series("wattmesh_grid_signal_usable", signal=SIGNAL["signal"]),
        SIGNAL,
        f"No decision may rest on {SIGNAL['signal']} now: it is stale or says nothing of the "
        "present",
        after=15,
        values="1x4 0x{on} 1x60",
    ),
    flag(
        "WattmeshGridHolding",
        series("wattmesh_grid_signal_rung", rung="none", signal=SIGNAL["signal"]),
        {"rung": "none", **SIGNAL},
        f"Nothing is known of the hours ahead of {SIGNAL['signal']}",
        after=30,
    ),
    flag(
        "WattmeshGridForecastOld",
        series("wattmesh_grid_forecast_age_seconds", signal=SIGNAL["signal"]),
        SIGNAL,
        f"Decisions on {SIGNAL['signal']} rest on what is 1d 1h 0m 0s old",
        after=15,
        values="60x4 90000x{on} 60x60",
    ),
    flag(
        "WattmeshGridBreakerOpen",
        series("wattmesh_grid_breaker_state", state="open", signal=SIGNAL["signal"]),
        {"state": "open", **SIGNAL},
        f"The provider of {SIGNAL['signal']} fails so often that it is left alone",
        after=30,
    ),
    AlertCase(
        alert="WattmeshGridForecastWithoutSkill",
        series={
            series(
                f"wattmesh_grid_{which}_error_grams_per_kilowatt_hour",
                signal=SIGNAL["signal"],
                source="issued",
                lead_hours="24",
            ): values
            for which, values in (
                ("forecast", "30x4 50x200 30x60"),
                ("persistence", "40x300"),
            )
        },
        early=170,
        fires=175,
        clears=210,
        hours=True,
        labels={"source": "issued", "lead_hours": "24", **SIGNAL},
        summary=f"The forecast of {SIGNAL['signal']}, 24 h ahead, is worse than yesterday's values",
    ),
)
