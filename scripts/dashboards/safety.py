"""The dashboard of decisions and safety: who acts on what, leases, refusals, signals, trouble."""

from scripts.dashboards.choices import CHOOSE_CLUSTER, CHOOSE_NODE
from scripts.dashboards.health import NO_AGENT, OURSELVES, SEEN
from scripts.dashboards.panels import YES_NO, DashboardSpec, Panel, PanelKind, PanelQuery, PanelRow
from scripts.dashboards.selecting import CLUSTER, RATE, of, on_nodes, one, told

NOBODY_ACTS = "no actuator acts on a GPU here"

NOW = PanelRow(
    title="Now",
    panels=(
        Panel(
            title="Needs a human",
            about="Red sentences of `wattmesh status`; each says what to type.",
            unit="none",
            queries=(PanelQuery(expr=one("cluster", of("wattmesh_trouble")), legend="sentences"),),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            red_from=1,
        ),
        Panel(
            title="Daemons",
            about="Whether Prometheus reaches each daemon.",
            unit="none",
            queries=(PanelQuery(expr=f'up{{{CLUSTER}, job="wattmesh"}}', legend="{{instance}}"),),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            words=(("0", "down"), ("1", "up")),
        ),
        Panel(
            title="Agents",
            about="How many agents Prometheus reaches, of those that it should.",
            unit="none",
            queries=(
                PanelQuery(expr=f'sum(up{{{CLUSTER}, job="wattmesh-agent"}})', legend="up"),
                PanelQuery(expr=f'count(up{{{CLUSTER}, job="wattmesh-agent"}})', legend="of"),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            empty=NO_AGENT,
        ),
        Panel(
            title="Leads",
            about="Which daemon decides. Exactly one should.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=f"max by (instance) ({of('wattmesh_leader')})", legend="{{instance}}"
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            words=(("0", "stands by"), ("1", "leads")),
        ),
        Panel(
            title="Mode and version",
            about="observe: only measures; advise: says what it would do; act: switches runs.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=f"max by (instance, mode, version) ({of('wattmesh_build_info')})",
                    legend="{{mode}} {{version}} {{instance}}",
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            words=(("1", "runs"),),
        ),
        Panel(
            title="Journal",
            about="Whether the journal takes writes. While it does not, every run holds.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=f"min by (instance) ({of('wattmesh_journal_up')})", legend="{{instance}}"
                ),
            ),
            kind=PanelKind.NUMBER,
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
                PanelQuery(
                    expr="max by (alertname, severity, run, node, gpu_uuid, instance) "
                    '(ALERTS{alertname=~"Wattmesh.*", alertstate="firing"})',
                    legend="{{alertname}}",
                ),
            ),
            kind=PanelKind.TABLE,
            wide=24,
            high=6,
            empty="nothing fires",
        ),
    ),
)

DECISIONS = PanelRow(
    title="Decisions",
    panels=(
        Panel(
            title="What was decided of each run",
            about="The action and the key of its reason, over time. The sentences are no metrics: "
            "`wattmesh decisions`.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=told("run, action, reason", of("wattmesh_run_decision")),
                    legend="{{run}} {{action}}: {{reason}}",
                ),
            ),
            kind=PanelKind.STATES,
            words=(("1", " "),),
            empty="no run is live",
        ),
        Panel(
            title="Frozen runs",
            about="Hands off: by wattmesh after failed switches, or by a person.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=told("run, by", of("wattmesh_run_frozen")), legend="{{run}} by {{by}}"
                ),
            ),
            kind=PanelKind.STATES,
            words=tuple(YES_NO.items()),
            empty="no run goes on",
        ),
        Panel(
            title="Switches that ended, in an hour",
            about="By outcome, of all runs. 0 is the truth: none ended so.",
            unit="none",
            queries=(
                PanelQuery(
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
                PanelQuery(
                    expr=one("outcome", f"rate({of('wattmesh_planner_questions_total')}[{RATE}])"),
                    legend="{{outcome}} a second",
                ),
                PanelQuery(expr=told("cluster", of("wattmesh_planner_waiting_runs")), legend="due"),
            ),
        ),
    ),
)

ACTS = PanelRow(
    title="Who acts on what GPU",
    panels=(
        Panel(
            title="GPUs and their holders",
            about="The run (by its id) that each GPU's energy is booked to; unattributed: several "
            "could be meant; idle: nobody computes there.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=one("node, gpu_uuid, run_id, line", on_nodes("wattmesh_gpu_holder_info")),
                    legend="{{gpu_uuid}}",
                ),
            ),
            kind=PanelKind.TABLE,
            empty=NO_AGENT,
        ),
        Panel(
            title="What is left of leases",
            about="Seconds until a GPU goes back by itself if nobody renews. economy: a clock, "
            "renewed while the daemon is heard; obligation: an operator's cap, until its own end.",
            unit="s",
            queries=(
                PanelQuery(
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
                PanelQuery(
                    expr=one("node, gpu_uuid", on_nodes("wattmesh_gpu_sm_clock_hertz")),
                    legend="{{node}} {{gpu_uuid}}",
                ),
                PanelQuery(
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
                PanelQuery(
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
                PanelQuery(
                    expr=f"count by (actuator, version) ({of('wattmesh_agent_info')})",
                    legend="{{actuator}}, agent {{version}}",
                ),
            ),
            kind=PanelKind.NUMBER,
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
                PanelQuery(
                    expr=f"sum({of('wattmesh_gpu_wish_refused')})", legend="GPUs: wish refused"
                ),
                PanelQuery(
                    expr=f"sum by (fault) ({of('wattmesh_gpu_fault')})",
                    legend="GPUs: {{fault}}",
                ),
                PanelQuery(expr=f"sum({of('wattmesh_agent_refused_rows')})", legend="rows refused"),
                PanelQuery(
                    expr=told("reason", of("wattmesh_actuators_fenced")),
                    legend="actuators that obey another {{reason}}",
                ),
            ),
            decimals=0,
        ),
    ),
)

BOARD = DashboardSpec(
    uid="wattmesh-safety",
    title="wattmesh: decisions and safety",
    about="Who decides and acts on what, what is left of leases, what is refused, seen and wrong.",
    variables=(CHOOSE_CLUSTER, CHOOSE_NODE),
    rows=(NOW, DECISIONS, ACTS, SEEN, OURSELVES),
    since="now-6h",
)
