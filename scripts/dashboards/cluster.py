"""The dashboard of the whole cluster: power, grams, the grid, budgets, savings."""

from scripts.dashboards.choices import CHOOSE_CLUSTER, CHOOSE_SIGNAL, G_PER_HOUR, G_PER_KWH
from scripts.dashboards.panels import YES_NO, DashboardSpec, Panel, PanelKind, PanelQuery, PanelRow
from scripts.dashboards.selecting import RATE, SIGNAL, grams_per_hour, of, one, told, watts

NOW = PanelRow(
    title="Now",
    panels=(
        Panel(
            title="Power",
            about="What all GPUs draw that were measured, as booked in the ledger. Time that "
            "nobody measured is not in it: see the panel of unobserved time.",
            unit="watt",
            queries=(PanelQuery(expr=f"sum({watts()})", legend="power"),),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
        ),
        Panel(
            title="Intensity of the grid",
            about="Grams per kilowatt-hour now, in the chosen signal; what it is beside measured "
            "stands behind it.",
            unit=G_PER_KWH,
            queries=(
                PanelQuery(
                    expr=told(
                        "signal, quality, flags",
                        of("wattmesh_grid_carbon_intensity_grams_per_kilowatt_hour", SIGNAL),
                    ),
                    legend="{{quality}} {{flags}}",
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
        ),
        Panel(
            title="Emitted",
            about="Grams an hour of all runs and idle GPUs, over the last hour, as first reported.",
            unit=G_PER_HOUR,
            queries=(
                PanelQuery(
                    expr=f"sum by (signal) ({grams_per_hour(SIGNAL)})",
                    legend="{{signal}}",
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
        ),
        Panel(
            title="Budget used",
            about="Share of each budget that is spent, with unobserved time at its most. Above 1 "
            "it is exhausted; no run is stopped for that.",
            unit="percentunit",
            queries=(
                PanelQuery(
                    expr="1 - "
                    + told("cluster, budget, signal", of("wattmesh_budget_residual_grams", SIGNAL))
                    + " / "
                    + told("cluster, budget, signal", of("wattmesh_budget_limit_grams", SIGNAL)),
                    legend="{{budget}}",
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            red_from=1.0,
            empty="no budget is set in this signal",
        ),
        Panel(
            title="Saved, at least",
            about="Lower end of what all runs saved against the points they were submitted at, "
            "less what given-back GPUs emitted. Only what is settled counts.",
            unit="massg",
            queries=(
                PanelQuery(
                    expr=told(
                        "signal, boundary, flags",
                        of("wattmesh_carbon_saved_cluster_grams", SIGNAL, end="low"),
                    ),
                    legend="boundary {{boundary}}, {{flags}}",
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            empty="no saving is settled yet",
        ),
        Panel(
            title="What the joules are",
            about="Whether any joule of any run is simulated (a device model), estimated, or "
            "provisional. Never simulated in production.",
            unit="none",
            queries=(PanelQuery(expr=one("flag", of("wattmesh_energy_flag")), legend="{{flag}}"),),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            words=tuple(YES_NO.items()),
        ),
    ),
)

ENERGY = PanelRow(
    title="Power and energy",
    panels=(
        Panel(
            title="Power by run",
            about="Watts booked to each run, and to the lines that are nobody's: idle, "
            "unattributed, given back. They add up to the cluster. A gap is time "
            "that nobody booked.",
            unit="watt",
            queries=(
                PanelQuery(expr=f"sum by (run, line) ({watts()})", legend="{{run}} {{line}}"),
            ),
            kind=PanelKind.STACK,
        ),
        Panel(
            title="GPUs read",
            about="GPUs whose power was read lately beside all that were ever read. Runs on the "
            "difference are held, and count at their most.",
            up_to=8,
            unit="none",
            queries=(
                PanelQuery(
                    expr=f"sum by (state) ({told('cluster, state', of('wattmesh_coverage_gpus'))})",
                    legend="{{state}}",
                ),
            ),
        ),
        Panel(
            title="Grams an hour by run",
            about="Grams an hour in the chosen signal, as first reported; revisions are in the "
            "ledger (`wattmesh budget`).",
            unit=G_PER_HOUR,
            queries=(
                PanelQuery(
                    expr=f"sum by (run, line) ({grams_per_hour(SIGNAL)})",
                    legend="{{run}} {{line}}",
                ),
            ),
            kind=PanelKind.STACK,
        ),
        Panel(
            title="Unobserved, at most",
            about="Most grams that can have been emitted while nobody measured: an estimate, and "
            "never in the sums of what was emitted. 0 is the truth where all was measured.",
            up_to=1,
            unit="massg",
            queries=(
                PanelQuery(
                    expr="sum by (run, line) ("
                    + told(
                        "cluster, run, run_id, line",
                        of("wattmesh_unobserved_upper_grams", SIGNAL),
                    )
                    + ")",
                    legend="{{run}} {{line}} (estimated)",
                ),
            ),
        ),
        Panel(
            title="Joules per token",
            about="Energy of each run over the tokens that it trained meanwhile.",
            unit="joule",
            queries=(
                PanelQuery(
                    expr="sum by (run) ("
                    + watts(line="run")
                    + ") / (sum by (run) ("
                    + one(
                        "cluster, run, run_id",
                        f"rate({of('wattmesh_run_tokens_total')}[{RATE}])",
                    )
                    + ") > 0)",
                    legend="{{run}}",
                ),
            ),
        ),
        Panel(
            title="Power cap",
            about="An operator's cap: as ordered, the most that all GPUs can draw under it, and "
            "the lowest cap that could be kept.",
            unit="watt",
            queries=(
                PanelQuery(
                    expr=told("figure, flags", of("wattmesh_power_cap_watts")),
                    legend="{{figure}} {{flags}}",
                ),
            ),
            empty="no cap is in force",
        ),
    ),
)

GRID = PanelRow(
    title="Grid",
    panels=(
        Panel(
            title="Intensity, and what was expected of it six hours before",
            about="The line is what the grid emitted; the band is what decisions counted with six "
            "hours earlier, from its 10 % to its 90 % quantile. A line outside the band more often "
            "than one hour in five is a forecast that is too sure.",
            unit=G_PER_KWH,
            queries=(
                PanelQuery(
                    expr=told(
                        "signal",
                        of("wattmesh_grid_carbon_intensity_grams_per_kilowatt_hour", SIGNAL),
                    ),
                    legend="now",
                ),
                *(
                    PanelQuery(
                        expr=one(
                            "signal",
                            of(
                                "wattmesh_grid_forecast_grams_per_kilowatt_hour",
                                SIGNAL,
                                lead_hours="6",
                                bound=bound,
                            )
                            + " offset 6h",
                        ),
                        legend=name,
                    )
                    for bound, name in (
                        ("expected", "expected"),
                        ("low", "10 %"),
                        ("high", "90 %"),
                    )
                ),
            ),
            band=("10 %", "90 %"),
            empty="the band is missing where the forecast in use tells none",
        ),
        Panel(
            title="The hours ahead, as decisions see them now",
            about="Expected intensity so many hours ahead. Prometheus keeps no samples of the "
            "future, so single hours are served; `wattmesh carbon forecast` has all with bands.",
            unit=G_PER_KWH,
            queries=tuple(
                PanelQuery(
                    expr=told(
                        "signal",
                        of(
                            "wattmesh_grid_forecast_grams_per_kilowatt_hour",
                            SIGNAL,
                            lead_hours=str(lead_h),
                            bound="expected",
                        ),
                    ),
                    legend=f"in {lead_h} h",
                )
                for lead_h in (1, 2, 3, 4, 6, 8, 12, 16, 20, 24)
            ),
            kind=PanelKind.BARS,
        ),
        Panel(
            title="Age of the signal",
            about="Seconds since the provider last answered, and since the forecast in use was "
            "issued.",
            unit="s",
            queries=(
                PanelQuery(
                    expr=told("signal", of("wattmesh_grid_signal_age_seconds")),
                    legend="heard: {{signal}}",
                ),
                PanelQuery(
                    expr=told("signal", of("wattmesh_grid_forecast_age_seconds")),
                    legend="issued: {{signal}}",
                ),
            ),
        ),
        Panel(
            title="Error of the forecast",
            about="Mean absolute error in recent weeks by hours ahead, beside that of yesterday's "
            "values. A source with the larger one has no skill.",
            unit=G_PER_KWH,
            queries=(
                PanelQuery(
                    expr=told(
                        "source, lead_hours",
                        of("wattmesh_grid_forecast_error_grams_per_kilowatt_hour", SIGNAL),
                    ),
                    legend="{{source}}, {{lead_hours}} h",
                ),
                PanelQuery(
                    expr=told(
                        "source, lead_hours",
                        of("wattmesh_grid_persistence_error_grams_per_kilowatt_hour", SIGNAL),
                    ),
                    legend="yesterday beside {{source}}, {{lead_hours}} h",
                ),
            ),
            empty="errors are known once forecasts have come true, after some days",
        ),
    ),
)

BUDGETS = PanelRow(
    title="Budgets",
    panels=(
        Panel(
            title="Spent beside planned",
            about="Grams spent in the running period, the most that unobserved time adds, what the "
            "plan allows until now, the limit, and where the present rate ends.",
            unit="massg",
            queries=(
                PanelQuery(
                    expr=told("budget, flags", of("wattmesh_budget_spent_grams", SIGNAL)),
                    legend="{{budget}} spent {{flags}}",
                ),
                PanelQuery(
                    expr=told("budget", of("wattmesh_budget_unobserved_upper_grams", SIGNAL)),
                    legend="{{budget}} unobserved at most (estimated)",
                ),
                PanelQuery(
                    expr=told("budget", of("wattmesh_budget_planned_grams", SIGNAL)),
                    legend="{{budget}} planned",
                ),
                PanelQuery(
                    expr=told("budget", of("wattmesh_budget_limit_grams", SIGNAL)),
                    legend="{{budget}} limit",
                ),
                PanelQuery(
                    expr=told("budget, flags", of("wattmesh_budget_on_course_grams", SIGNAL)),
                    legend="{{budget}} on course for {{flags}}",
                ),
            ),
            empty="no budget is set in this signal; in the first days nothing is on course",
        ),
        Panel(
            title="Burn",
            about="Grams spent over grams planned in each window, unobserved time at its most; 1 "
            "follows the plan. Over 2 for 6 h and 24 h alerts fast, above 1 for three and seven "
            "days slowly.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=told("budget, window", of("wattmesh_budget_burn_ratio")),
                    legend="{{budget}} {{window}}",
                ),
            ),
            red_from=2.0,
            empty="no budget is set, or none is a window old",
        ),
    ),
)

SAVED = PanelRow(
    title="Saved",
    panels=(
        Panel(
            title="Saved by all runs",
            about="Settled savings of all runs: lower and upper end. They differ by what nobody "
            "measured; the lower end is the claim.",
            unit="massg",
            queries=tuple(
                PanelQuery(
                    expr=told("signal", of("wattmesh_carbon_saved_cluster_grams", SIGNAL, end=end)),
                    legend=name,
                )
                for end, name in (("low", "at least"), ("high", "at most"))
            ),
            band=("at least", "at most"),
            empty="no saving is settled yet",
        ),
        Panel(
            title="Saved by run, against which baseline",
            about="Value #A: lower end, #B: upper end, in grams; `baseline`: the point that the "
            "run was submitted at. `flags`: simulated, estimated, provisional.",
            unit="massg",
            queries=tuple(
                PanelQuery(
                    expr=told("run, run_id, baseline, signal, boundary, flags", of(metric, SIGNAL)),
                    legend="{{run}}",
                )
                for metric in ("wattmesh_carbon_saved_grams", "wattmesh_carbon_saved_high_grams")
            ),
            kind=PanelKind.TABLE,
            empty="no saving is settled yet",
        ),
        Panel(
            title="Saved by a better point, and by following the grid",
            about="Parts of the lower end. Only carbon_aware may be called carbon-aware; "
            "better_point is a one-time choice of layout and clock.",
            unit="massg",
            queries=(
                PanelQuery(
                    expr="sum by (part) ("
                    + told(
                        "cluster, run, run_id, part",
                        of("wattmesh_carbon_saved_part_grams", SIGNAL),
                    )
                    + ")",
                    legend="{{part}}",
                ),
            ),
            empty="no saving is settled, or its parts are not known yet",
        ),
        Panel(
            title="Runs",
            about="Runs that go on: point, layout and state. A run that is only observed has no "
            "point. Those that have ended: `wattmesh runs`.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=told(
                        "run, run_id, point, layout, state",
                        of("wattmesh_run_config_info", state="~live|lost"),
                    ),
                    legend="{{run}}",
                ),
            ),
            kind=PanelKind.TABLE,
            empty="no run goes on",
        ),
    ),
)

BOARD = DashboardSpec(
    uid="wattmesh-cluster",
    title="wattmesh: cluster",
    about="Power, grams, grid, budgets and savings of the whole cluster.",
    variables=(CHOOSE_CLUSTER, CHOOSE_SIGNAL),
    rows=(NOW, ENERGY, GRID, BUDGETS, SAVED),
)
