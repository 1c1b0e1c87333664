"""What can be chosen at the top of a dashboard, and units that Grafana has no id for."""

from scripts.dashboards.panels import DashboardVariable
from scripts.dashboards.selecting import CLUSTER, of

G_PER_KWH = "suffix: g/kWh"
G_PER_HOUR = "suffix: g/h"

CHOOSE_CLUSTER = DashboardVariable(
    name="cluster",
    label="Cluster",
    query="label_values(wattmesh_build_info, cluster)",
    about="The label `cluster` of the scrape targets; nothing to choose where there is none.",
    every=True,
)
CHOOSE_SIGNAL = DashboardVariable(
    name="signal",
    label="Signal",
    query=f"label_values({of('wattmesh_grid_poll_state')}, signal)",
    about="The grid signal that grams are counted in. Two signals are never added.",
)
CHOOSE_RUN = DashboardVariable(
    name="run",
    label="Run",
    query=f"label_values({of('wattmesh_run_config_info')}, run)",
    about="The run, by its name.",
)
CHOOSE_RUN_ID = DashboardVariable(
    name="run_id",
    label="Id",
    query="label_values(" + of("wattmesh_run_config_info", f'{CLUSTER}, run="$run"') + ", run_id)",
    about="A name may come again; the id tells two runs of one name apart.",
    every=True,
)
CHOOSE_NODE = DashboardVariable(
    name="node",
    label="Node",
    query=f"label_values({of('wattmesh_gpu_info')}, node)",
    about="A node with GPUs, as its agent calls itself; empty where a daemon reads its own. One at "
    "a time: a thousand nodes have too many GPUs for one picture.",
)
