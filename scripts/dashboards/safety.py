"""The dashboard of decisions and safety: who acts on what, leases, refusals, signals, trouble."""

from scripts.dashboards.choices import CHOOSE_CLUSTER, CHOOSE_NODE
from scripts.dashboards.panels import YES_NO, Board, Kind, Panel, Query, Row
from scripts.dashboards.selecting import CLUSTER, RATE, of, on_nodes, one, told

NO_AGENT = "no agent is scraped (a daemon that reads its own machine has none)"
DARK = of("wattmesh_gpu_unobserved_seconds_total")
NOBODY_ACTS = "no actuator acts on a GPU here"

NOW = Row(
    title="Now",
    panels=(
        Panel(
            title="Needs a human",
            about="Red sentences of `wattmesh status`; each says what to type.",
            unit="none",
            queries=(Query(expr=one("cluster", of("wattmesh_trouble")), legend="sentences"),),
            kind=Kind.NUMBER,
            wide=4,
            high=5,
            red_from=1,
        ),
        Panel(
            title="Daemons",
            about="Whether Prometheus reaches each daemon.",
            unit="none",
            queries=(Query(expr=f'up{{{CLUSTER}, job="wattmesh"}}', legend="{{instance}}"),),
            kind=Kind.NUMBER,
            wide=4,
            high=5,
            words=(("0", "down"), ("1", "up")),
        ),
        Panel(
            title="Agents",
            about="How many agents Prometheus reaches, of those that it should.",
            unit="none",
            queries=(
                Query(expr=f'sum(up{{{CLUSTER}, job="wattmesh-agent"}})', legend="up"),
                Query(expr=f'count(up{{{CLUSTER}, job="wattmesh-agent"}})', legend="of"),
            ),
            kind=Kind.NUMBER,
            wide=4,
            high=5,
            empty=NO_AGENT,
        ),
        Panel(
            title="Leads",
            about="Which daemon decides. Exactly one should.",
            unit="none",
            queries=(
                Query(expr=f"max by (instance) ({of('wattmesh_leader')})", legend="{{instance}}"),
            ),
            kind=Kind.NUMBER,
            wide=4,
            high=5,
            words=(("0", "stands by"), ("1", "leads")),
        ),
        Panel(
            title="Mode and version",
            about="observe: only measures; advise: says what it would do; act: switches runs.",
            unit="none",
            queries=(
                Query(
                    expr=f"max by (instance, mode, version) ({of('wattmesh_build_info')})",
                    legend="{{mode}} {{version}} {{instance}}",
                ),
            ),
            kind=Kind.NUMBER,
            wide=4,
            high=5,
            words=(("1", "runs"),),
        ),
        Panel(
            title="Journal",
            about="Whether the journal takes writes. While it does not, every run holds.",
            unit="none",
            queries=(
                Query(
                    expr=f"min by (instance) ({of('wattmesh_journal_up')})", legend="{{instance}}"
                ),
            ),
            kind=Kind.NUMBER,
            wide=4,
            high=5,
            words=(("0", "down"), ("1", "takes writes")),
        ),
        Panel(
            title="Alerts that fire",
            about="Of the rules that `wattmesh rules` writes; docs/runbook.md has a section for "
            "each.",
            unit="none",
            queries=(
                Query(
                    expr="max by (alertname, severity, run, node, gpu_uuid, instance) "
                    '(ALERTS{alertname=~"Wattmesh.*", alertstate="firing"})',
                    legend="{{alertname}}",
                ),
            ),
            kind=Kind.TABLE,
            wide=24,
            high=6,
            empty="nothing fires",
        ),
    ),
)

DECISIONS = Row(
    title="Decisions",
    panels=(
        Panel(
            title="What was decided of each run",
            about="The action and the key of its reason, over time. The sentences are no metrics: "
            "`wattmesh decisions`.",
            unit="none",
            queries=(
                Query(
                    expr=told("run, action, reason", of("wattmesh_run_decision")),
                    legend="{{run}} {{action}}: {{reason}}",
                ),
            ),
            kind=Kind.STATES,
            words=(("1", " "),),
            empty="no run is live",
        ),
        Panel(
            title="Frozen runs",
            about="Hands off: by wattmesh after failed switches, or by a person.",
            unit="none",
            queries=(
                Query(expr=told("run, by", of("wattmesh_run_frozen")), legend="{{run}} by {{by}}"),
            ),
            kind=Kind.STATES,
            words=tuple(YES_NO.items()),
            empty="no run goes on",
        ),
        Panel(
            title="Switches that ended, in an hour",
            about="By outcome, of all runs. 0 is the truth: none ended so.",
            unit="none",
            queries=(
                Query(
                    expr="sum by (outcome) ("
                    + one(
                        "cluster, run, run_id, outcome",
                        f"increase({of('wattmesh_switches_total')}[1h])",
                    )
                    + ")",
                    legend="{{outcome}}",
                ),
            ),
            decimals=1,
            empty="no run goes on, and none was ever switched",
        ),
        Panel(
            title="Plans",
            about="Plans asked of the planning process, a second, and runs whose next plan is due.",
            unit="none",
            queries=(
                Query(
                    expr=one("outcome", f"rate({of('wattmesh_planner_questions_total')}[{RATE}])"),
                    legend="{{outcome}} a second",
                ),
                Query(expr=told("cluster", of("wattmesh_planner_waiting_runs")), legend="due"),
            ),
        ),
    ),
)

ACTS = Row(
    title="Who acts on what GPU",
    panels=(
        Panel(
            title="GPUs and their holders",
            about="The run (by its id) that each GPU's energy is booked to; unattributed: several "
            "could be meant; idle: nobody computes there.",
            unit="none",
            queries=(
                Query(
                    expr=one("node, gpu_uuid, run_id, line", on_nodes("wattmesh_gpu_holder_info")),
                    legend="{{gpu_uuid}}",
                ),
            ),
            kind=Kind.TABLE,
            empty=NO_AGENT,
        ),
        Panel(
            title="What is left of leases",
            about="Seconds until a GPU goes back by itself if nobody renews. economy: a clock, "
            "renewed while the daemon is heard; obligation: an operator's cap, until its own end.",
            unit="s",
            queries=(
                Query(
                    expr="min by (node, gpu_uuid, kind, holder) ("
                    + on_nodes("wattmesh_gpu_lease_seconds")
                    + ")",
                    legend="{{node}} {{gpu_uuid}} {{kind}} of {{holder}}",
                ),
            ),
            empty=NOBODY_ACTS,
        ),
        Panel(
            title="Clocks: as locked, and as they are",
            about="SM clock of each GPU, and the clock that wattmesh locked it to.",
            unit="hertz",
            queries=(
                Query(
                    expr=one("node, gpu_uuid", on_nodes("wattmesh_gpu_sm_clock_hertz")),
                    legend="{{node}} {{gpu_uuid}}",
                ),
                Query(
                    expr=one("node, gpu_uuid", on_nodes("wattmesh_gpu_locked_clock_hertz")),
                    legend="{{node}} {{gpu_uuid}} locked",
                ),
            ),
        ),
        Panel(
            title="Power limits",
            about="Limit in force on each board, and as set through the driver.",
            unit="watt",
            queries=(
                Query(
                    expr=one("node, gpu_uuid, kind", on_nodes("wattmesh_gpu_power_limit_watts")),
                    legend="{{node}} {{gpu_uuid}} {{kind}}",
                ),
            ),
        ),
        Panel(
            title="Actuators",
            about="Nodes by the mode of their actuator (none: it does not answer) and the version "
            "of their agent.",
            unit="none",
            queries=(
                Query(
                    expr=f"count by (actuator, version) ({of('wattmesh_agent_info')})",
                    legend="{{actuator}}, agent {{version}}",
                ),
            ),
            kind=Kind.NUMBER,
            empty=NO_AGENT,
        ),
        Panel(
            title="Refused, and faults",
            about="GPUs whose actuator does not do what is wished; GPUs that someone else sets "
            "(foreign) or that could not be given back (restore); ledger rows that the daemon "
            "refuses; actuators that obey another journal. 0 is the truth: none.",
            up_to=1,
            unit="none",
            queries=(
                Query(expr=f"sum({of('wattmesh_gpu_wish_refused')})", legend="GPUs: wish refused"),
                Query(
                    expr=f"sum by (fault) ({of('wattmesh_gpu_fault')})",
                    legend="GPUs: {{fault}}",
                ),
                Query(expr=f"sum({of('wattmesh_agent_refused_rows')})", legend="rows refused"),
                Query(
                    expr=told("reason", of("wattmesh_actuators_fenced")),
                    legend="actuators that obey another {{reason}}",
                ),
            ),
            decimals=0,
        ),
    ),
)

SEEN = Row(
    title="What is seen",
    panels=(
        Panel(
            title="Time that nobody measured",
            about="Share of time that was read by nobody, of all GPUs and of the worst one. 0 is "
            "the truth: all was read. The alert names the GPU.",
            up_to=0.1,
            unit="percentunit",
            queries=(
                Query(
                    expr=f"avg(rate({DARK}[{RATE}]))",
                    legend="all GPUs",
                ),
                Query(
                    expr=f"max(rate({DARK}[{RATE}]))",
                    legend="worst GPU",
                ),
            ),
        ),
        Panel(
            title="Nodes",
            about="Nodes whose agent is heard by the daemon, and silent ones.",
            unit="none",
            queries=(Query(expr=told("state", of("wattmesh_nodes")), legend="{{state}}"),),
        ),
        Panel(
            title="Counters that cannot be trusted",
            about="Sensors that stand still (stale) and GPUs that do not answer (lost). 0 is the "
            "truth: none.",
            up_to=1,
            unit="none",
            queries=(
                Query(
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
                Query(
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
                Query(
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
                Query(
                    expr=told("signal, rung", of("wattmesh_grid_signal_rung")) + " == 1",
                    legend="{{signal}}: {{rung}}",
                ),
            ),
            kind=Kind.STATES,
            words=(("1", " "),),
        ),
        Panel(
            title="Signals: age",
            about="Seconds since each provider last answered.",
            unit="s",
            queries=(
                Query(
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
                Query(
                    expr=told("signal, state", of("wattmesh_grid_poll_state")) + " == 1",
                    legend="{{signal}}: {{state}}",
                ),
            ),
            kind=Kind.STATES,
            words=(("1", " "),),
        ),
    ),
)

OURSELVES = Row(
    title="wattmesh itself",
    panels=(
        Panel(
            title="Loops: seconds since progress",
            about="Each loop of a daemon. One that grows without end hangs.",
            unit="s",
            queries=(
                Query(
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
                Query(
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
                Query(
                    expr="sum by (loop, outcome) (increase("
                    + of("wattmesh_loop_turns_total", outcome="~failed|bug|overrun")
                    + "[5m]))",
                    legend="{{loop}} {{outcome}}",
                ),
                Query(
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
                Query(
                    expr=f"max by (instance) ({of('wattmesh_journal_bytes')})",
                    legend="journal at {{instance}}",
                ),
                Query(
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
                Query(
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
                Query(
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

BOARD = Board(
    uid="wattmesh-safety",
    title="wattmesh: decisions and safety",
    about="Who decides and acts on what, what is left of leases, what is refused, seen and wrong.",
    variables=(CHOOSE_CLUSTER, CHOOSE_NODE),
    rows=(NOW, DECISIONS, ACTS, SEEN, OURSELVES),
    since="now-6h",
)
