"""For each alert: samples, a minute apart, that raise it, and that clear it."""

from tests.observability.rule_cases_measured import BUDGETS, GPUS, SIGNALS
from tests.observability.rule_files import AlertCase
from tests.observability.rule_series import HEAD, HERE, LEADS, PAIR, RUN, STANDS_BY, flag, series

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

CASES = (*DAEMON, *RUNS, *GPUS, *BUDGETS, *SIGNALS)
