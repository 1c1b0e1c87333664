"""For each alert: samples, a minute apart, that raise it, and that clear it."""

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

DAEMON = (
    AlertCase(
        alert="WattmeshDaemonDown",
        # One scrape that is missed raises nothing.
        series={series("up"): "1x4 0 1x4 0x9 1x9"},
        early=11,
        fires=14,
        clears=22,
        labels=HERE,
        summary=f"The wattmesh daemon at {HEAD} does not answer Prometheus",
    ),
    AlertCase(
        alert="WattmeshNotScraped",
        series={series("up"): "_x20 1x20"},
        early=9,
        fires=12,
        clears=25,
        labels={"job": "wattmesh"},
        summary="No target of the job wattmesh is scraped, so no alert on wattmesh can fire",
    ),
    AlertCase(
        alert="WattmeshNoLeader",
        # The other of the pair takes over within a minute: nobody is called.
        series={
            series("wattmesh_leader", cluster="a"): "1x4 0x30",
            series("wattmesh_leader", instance=PAIR, cluster="a"): "0x5 1x9 0x9 1x9",
        },
        early=16,
        fires=18,
        clears=26,
        labels={"cluster": "a"},
        summary="No wattmesh daemon leads in a",
    ),
    flag(
        "WattmeshJournalDown",
        series("wattmesh_journal_up"),
        HERE,
        f"The journal of the daemon at {HEAD} takes no writes",
        after=2,
        values="1x4 0x{on} 1x60",
    ),
    AlertCase(
        alert="WattmeshJournalDiskFull",
        series={
            series("wattmesh_journal_disk_bytes", kind="size"): "100x60",
            series("wattmesh_journal_disk_bytes", kind="free"): "6x4 4x20 50x30",
        },
        early=9,
        fires=11,
        clears=26,
        labels=HERE,
        summary=f"The disk of the journal at {HEAD} has 4% left",
    ),
    AlertCase(
        alert="WattmeshJournalDiskFilling",
        series={series("wattmesh_journal_disk_bytes", kind="free"): "100000-100x300 90000x400"},
        early=20,
        fires=60,
        clears=400,
        labels={"kind": "free", **HERE},
        summary=f"The disk of the journal at {HEAD} will be full within a day at the pace of the "
        "last 6 h",
    ),
    AlertCase(
        alert="WattmeshCycleStands",
        series={
            series("wattmesh_loop_progress_age_seconds", loop="cycle"): "5x4 65+60x20 5x30",
            series("wattmesh_loop_progress_age_seconds", loop="figures"): "600x60",
        },
        early=10,
        fires=12,
        clears=27,
        labels={"loop": "cycle", **HERE},
        summary=f"The control cycle at {HEAD} has made no progress for 8m 5s",
    ),
    AlertCase(
        alert="WattmeshLoopBug",
        series={
            series("wattmesh_loop_turns_total", loop="cycle", outcome="bug"): "0x4 1x100",
            series("wattmesh_loop_turns_total", loop="cycle", outcome="done"): "0+12x100",
        },
        early=5,
        fires=20,
        clears=45,
        labels={"loop": "cycle", "outcome": "bug", **HERE},
        summary=f"The cycle loop at {HEAD} ended in a bug 1 times within 30 min",
    ),
    AlertCase(
        alert="WattmeshTrouble",
        series={
            series("wattmesh_trouble"): "0x4 2x20 0x30",
            series("wattmesh_trouble", instance=PAIR): "0x4 1x20 0x30",
        },
        early=14,
        fires=16,
        clears=26,
        labels={"job": "wattmesh"},
        summary="2 sentences in `wattmesh status` need a human",
    ),
)

RUNS = (
    AlertCase(
        alert="WattmeshSwitchFailed",
        # Two daemons on one journal tell of one failure.
        series={
            series(
                "wattmesh_switches_total", outcome="rolled_back", instance=each, **RUN
            ): "0x4 1x200"
            for each in (HEAD, PAIR)
        },
        early=5,
        fires=30,
        clears=70,
        labels={"outcome": "rolled_back", "job": "wattmesh", **RUN},
        summary="1 switches of llama-8b within the last hour ended as rolled_back",
    ),
    AlertCase(
        alert="WattmeshDeadlineAtRisk",
        series={
            LEADS: "1x60",
            series("wattmesh_run_slack_seconds", **RUN): "600x4 -600x20 600x20",
            # What a standby thinks calls nobody.
            STANDS_BY: "0x60",
            series("wattmesh_run_slack_seconds", instance=PAIR, **RUN): "-600x60",
        },
        early=9,
        fires=11,
        clears=26,
        labels={"job": "wattmesh", **RUN},
        summary="llama-8b will miss its deadline, with a slack of -10m 0s",
    ),
    AlertCase(
        alert="WattmeshDeadlinePassed",
        # It has finished by the 30th minute: then it has no deadline any more.
        series={
            series("wattmesh_run_deadline_timestamp_seconds", **RUN): "600x30 stale",
        },
        early=14,
        fires=20,
        clears=32,
        labels={"job": "wattmesh", **RUN},
        summary="llama-8b is 10m 0s past its deadline and has not finished",
    ),
    AlertCase(
        alert="WattmeshRunFrozen",
        series={
            LEADS: "1x60",
            series("wattmesh_run_frozen", by="wattmesh", **RUN): "0x4 1x20 0x20",
            # An operator who freezes a run needs no call.
            series("wattmesh_run_frozen", by="person", **RUN | {"run": "moe"}): "1x60",
        },
        early=9,
        fires=11,
        clears=26,
        labels={"by": "wattmesh", "job": "wattmesh", **RUN},
        summary="llama-8b was frozen by wattmesh, and is not switched until a person thaws it",
    ),
    AlertCase(
        alert="WattmeshRunLost",
        series={
            LEADS: "1x60",
            series("wattmesh_run_heard_age_seconds", **RUN): "5x4 65+60x20 5x20",
            series("wattmesh_run_config_info", state="live", point="A", **RUN): "1x4 stale",
            series("wattmesh_run_config_info", state="lost", point="A", **RUN): "_x5 1x20 stale",
        },
        early=9,
        fires=12,
        clears=27,
        labels=RUN,
        summary="llama-8b has not been heard for 8m 5s",
    ),
    flag(
        "WattmeshCheckpointFailing",
        series("wattmesh_run_checkpoint_failing", **RUN),
        {"job": "wattmesh", **RUN},
        "llama-8b leaves no checkpoint at its save steps",
        after=15,
        beside={LEADS: "1x100"},
    ),
    flag(
        "WattmeshPointOffCatalogue",
        series("wattmesh_run_point_alert", point="A", quantity="speed", **RUN),
        {"point": "A", "quantity": "speed", **RUN, **HERE},
        "speed of llama-8b at A is not as its catalogue states",
        after=30,
    ),
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

CASES = (*DAEMON, *RUNS, *GPUS, *BUDGETS, *SIGNALS)
