"""Rows of the dashboard of decisions and safety: what is seen, and wattmesh itself."""

from scripts.dashboards.panels import Panel, PanelKind, PanelQuery, PanelRow
from scripts.dashboards.selecting import RATE, of, on_nodes, one, told

DARK = of("wattmesh_gpu_unobserved_seconds_total")
NO_AGENT = "no agent is scraped (a daemon that reads its own machine has none)"

SEEN = PanelRow(
    title="What is seen",
    panels=(
        Panel(
            title="Time that nobody measured",
            about="Share of time that was read by nobody, of all GPUs and of the worst one. 0 is "
            "the truth: all was read. The alert names the GPU.",
            up_to=0.1,
            unit="percentunit",
            queries=(
                PanelQuery(
                    expr=f"avg(rate({DARK}[{RATE}]))",
                    legend="all GPUs",
                ),
                PanelQuery(
                    expr=f"max(rate({DARK}[{RATE}]))",
                    legend="worst GPU",
                ),
            ),
        ),
        Panel(
            title="Nodes",
            about="Nodes whose agent is heard by the daemon, and silent ones.",
            unit="none",
            queries=(PanelQuery(expr=told("state", of("wattmesh_nodes")), legend="{{state}}"),),
        ),
        Panel(
            title="Counters that cannot be trusted",
            about="Sensors that stand still (stale) and GPUs that do not answer (lost). 0 is the "
            "truth: none.",
            up_to=1,
            unit="none",
            queries=(
                PanelQuery(
                    expr=f"sum by (reason) ({of('wattmesh_gpu_counter_fault')})",
                    legend="{{reason}}",
                ),
            ),
            decimals=0,
        ),
        Panel(
            title="Counter over power",
            about="Energy by each GPU's counter over its power x time, in the last hour: outside "
            "0.9 to 1.1 one of the two is wrong.",
            unit="percentunit",
            queries=(
                PanelQuery(
                    expr=one("node, gpu_uuid", on_nodes("wattmesh_gpu_counter_power_ratio")),
                    legend="{{node}} {{gpu_uuid}}",
                ),
            ),
            empty="it is known after the first ten minutes",
        ),
        Panel(
            title="Agents: last delivery, last instructions",
            about="Seconds since the daemon last took what an agent measured, and last told it "
            "clocks and caps: of the agent that waits longest.",
            unit="s",
            queries=(
                PanelQuery(
                    expr=f"max by (of) ({of('wattmesh_agent_controller_age_seconds')})",
                    legend="{{of}}",
                ),
            ),
            empty=NO_AGENT,
        ),
        Panel(
            title="Signals: what decisions rest on",
            about="issued: the provider's forecast; profile: stored history; static; none: every "
            "run that decides on it holds.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=told("signal, rung", of("wattmesh_grid_signal_rung")) + " == 1",
                    legend="{{signal}}: {{rung}}",
                ),
            ),
            kind=PanelKind.STATES,
            words=(("1", " "),),
        ),
        Panel(
            title="Signals: age",
            about="Seconds since each provider last answered.",
            unit="s",
            queries=(
                PanelQuery(
                    expr=told("signal", of("wattmesh_grid_signal_age_seconds")),
                    legend="{{signal}}",
                ),
            ),
        ),
        Panel(
            title="Signals: polls",
            about="How the newest poll of each provider ended: ok, failed, refused (a person must "
            "act).",
            unit="none",
            queries=(
                PanelQuery(
                    expr=told("signal, state", of("wattmesh_grid_poll_state")) + " == 1",
                    legend="{{signal}}: {{state}}",
                ),
            ),
            kind=PanelKind.STATES,
            words=(("1", " "),),
        ),
    ),
)

OURSELVES = PanelRow(
    title="wattmesh itself",
    panels=(
        Panel(
            title="Loops: seconds since progress",
            about="Each loop of a daemon. One that grows without end hangs.",
            unit="s",
            queries=(
                PanelQuery(
                    expr="max by (instance, loop) ("
                    + of("wattmesh_loop_progress_age_seconds")
                    + ")",
                    legend="{{instance}} {{loop}}",
                ),
            ),
        ),
        Panel(
            title="Loops: duration of a turn",
            about="Seconds that the newest turn of each loop took.",
            unit="s",
            queries=(
                PanelQuery(
                    expr=f"max by (instance, loop) ({of('wattmesh_loop_turn_seconds')})",
                    legend="{{instance}} {{loop}}",
                ),
            ),
        ),
        Panel(
            title="Turns that ended badly, in 5 min",
            about="By loop: failed (it says why in the log), bug (report it), overrun (too slow). "
            "0 is the truth: none.",
            up_to=1,
            unit="none",
            queries=(
                PanelQuery(
                    expr="sum by (loop, outcome) (increase("
                    + of("wattmesh_loop_turns_total", outcome="~failed|bug|overrun")
                    + "[5m]))",
                    legend="{{loop}} {{outcome}}",
                ),
                PanelQuery(
                    expr=f"sum(increase({of('wattmesh_run_failures_total')}[5m]))",
                    legend="of one run alone",
                ),
            ),
            decimals=1,
        ),
        Panel(
            title="Journal and its disk",
            about="Size of the journal, and room left on its disk.",
            unit="bytes",
            queries=(
                PanelQuery(
                    expr=f"max by (instance) ({of('wattmesh_journal_bytes')})",
                    legend="journal at {{instance}}",
                ),
                PanelQuery(
                    expr=f"max by (instance) ({of('wattmesh_journal_disk_bytes', kind='free')})",
                    legend="free at {{instance}}",
                ),
            ),
            empty="the journal is in PostgreSQL, on a disk that is watched there",
        ),
        Panel(
            title="Outboxes of agents",
            about="What the agent with the fullest outbox measured and nobody took yet, beside the "
            "limit from which rows are joined.",
            unit="bytes",
            queries=(
                PanelQuery(
                    expr=f"max by (kind) ({of('wattmesh_agent_outbox_bytes')})",
                    legend="{{kind}}",
                ),
            ),
            empty=NO_AGENT,
        ),
        Panel(
            title="Scheduled jobs that did not run well, in an hour",
            about="Polls, budgets, retention: failed, missed (too late) or skipped (busy).",
            up_to=1,
            unit="none",
            queries=(
                PanelQuery(
                    expr="sum by (job_name, outcome) (label_replace(increase("
                    + of("wattmesh_job_runs_total", outcome="~failed|missed|skipped")
                    + '[1h]), "job_name", "$1", "exported_job", "(.*)"))',
                    legend="{{job_name}} {{outcome}}",
                ),
            ),
            decimals=1,
            empty="every job ran well since the daemon started",
        ),
    ),
)
