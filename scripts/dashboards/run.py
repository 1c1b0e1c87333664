"""The dashboard of one run: layouts over time under the grid, plan against done, switches."""

from scripts.dashboards.choices import (
    CHOOSE_CLUSTER,
    CHOOSE_RUN,
    CHOOSE_RUN_ID,
    CHOOSE_SIGNAL,
    G_PER_HOUR,
    G_PER_KWH,
)
from scripts.dashboards.panels import (
    YES_NO,
    DashboardSpec,
    Marks,
    Panel,
    PanelKind,
    PanelQuery,
    PanelRow,
)
from scripts.dashboards.selecting import RATE, RUN, SIGNAL, grams_per_hour, of, one, told, watts

SWITCH = told(
    "run, from_point, to_point, by, reason, state",
    of("wattmesh_run_switch_timestamp_seconds", RUN),
)
PRICED = f'{RUN}, signal="$signal"'
NO_PLAN = "the run has no catalogue, so it is not planned"

NOW = PanelRow(
    title="Now",
    panels=(
        Panel(
            title="Trained",
            about="Tokens trained, as a share of what the run is to train.",
            unit="percentunit",
            queries=(
                PanelQuery(
                    expr=one("run_id", of("wattmesh_run_tokens_total", RUN))
                    + " / "
                    + told("run_id", of("wattmesh_run_target_tokens", RUN)),
                    legend="done",
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            empty="the run named no number of tokens, or has finished",
        ),
        Panel(
            title="Deadline slack",
            about="Seconds that the deadline guard has to spare: below 0 the run will be late.",
            unit="s",
            queries=(
                PanelQuery(
                    expr=told("run_id", of("wattmesh_run_slack_seconds", RUN)), legend="slack"
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            empty="the run has no deadline",
        ),
        Panel(
            title="Speed",
            about="Tokens a second, as the run reports it.",
            unit="suffix: tokens/s",
            queries=(
                PanelQuery(
                    expr=told("run_id", of("wattmesh_run_throughput_tokens_per_second", RUN)),
                    legend="speed",
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            empty="the run reports no speed, or is not live",
        ),
        Panel(
            title="Joules per token",
            about="Energy booked to the run over the tokens that it trained meanwhile.",
            unit="joule",
            queries=(
                PanelQuery(
                    expr=f"sum({watts(RUN, line='run')}) / (sum("
                    + one("run_id", f"rate({of('wattmesh_run_tokens_total', RUN)}[{RATE}])")
                    + ") > 0)",
                    legend="J/token",
                ),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            empty="the run trains no tokens now, or tells none",
        ),
        Panel(
            title="Frozen",
            about="Whether hands are off the run, by wattmesh after failed switches or by a "
            "person. It trains on and is accounted.",
            unit="none",
            queries=(
                PanelQuery(expr=told("by", of("wattmesh_run_frozen", RUN)), legend="by {{by}}"),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            words=tuple(YES_NO.items()),
            empty="the run has finished",
        ),
        Panel(
            title="What the joules are",
            about="Whether any joule of the run is simulated, estimated or provisional.",
            unit="none",
            queries=(
                PanelQuery(expr=one("flag", of("wattmesh_energy_flag", RUN)), legend="{{flag}}"),
            ),
            kind=PanelKind.NUMBER,
            wide=4,
            high=5,
            words=tuple(YES_NO.items()),
        ),
    ),
)

OVER_TIME = PanelRow(
    title="Layouts under the grid",
    panels=(
        Panel(
            title="Intensity over time",
            about="Grams per kilowatt-hour; the band is what was expected six hours before, from "
            "its 10 % to its 90 % quantile. Switches of the run are marked.",
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
                    for bound, name in (("low", "10 %"), ("high", "90 %"))
                ),
            ),
            band=("10 %", "90 %"),
            empty="the band is missing where the forecast in use tells none",
            wide=24,
            high=7,
        ),
        Panel(
            title="Layout, and where the plan has it",
            about="The point and layout that the run reported, over time, and the point that the "
            "newest plan had for the moment. They differ while a switch waits for a boundary, a "
            "dwell time, or a person.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=told("point, layout", of("wattmesh_run_config_info", RUN, state="live")),
                    legend="at {{point}}: {{layout}}",
                ),
                PanelQuery(
                    expr=told("point", of("wattmesh_plan_point_info", RUN)),
                    legend="planned {{point}}",
                ),
            ),
            kind=PanelKind.STATES,
            wide=24,
            high=7,
            words=(("1", " "),),
            empty="the run was not live in this time",
        ),
        Panel(
            title="Power",
            about="Watts booked to the run: its GPUs at work, and those it holds. A gap is time "
            "that nobody booked.",
            unit="watt",
            queries=(PanelQuery(expr=f"sum by (line) ({watts(RUN)})", legend="{{line}}"),),
        ),
        Panel(
            title="Speed",
            about="Tokens a second, as the run reports it.",
            unit="suffix: tokens/s",
            queries=(
                PanelQuery(
                    expr=told("run", of("wattmesh_run_throughput_tokens_per_second", RUN)),
                    legend="{{run}}",
                ),
            ),
            empty="the run reports no speed, or was not live",
        ),
        Panel(
            title="Joules per token",
            about="Energy booked over the tokens that were trained meanwhile.",
            unit="joule",
            queries=(
                PanelQuery(
                    expr=f"sum({watts(RUN, line='run')}) / (sum("
                    + one("run_id", f"rate({of('wattmesh_run_tokens_total', RUN)}[{RATE}])")
                    + ") > 0)",
                    legend="J/token",
                ),
            ),
            empty="the run trains no tokens, or tells none",
        ),
        Panel(
            title="Points beside their catalogue",
            about="Measured speed and watts of each point over what its catalogue states, over "
            "steady time; 1 is as stated. Plans are made by the catalogue.",
            unit="percentunit",
            queries=(
                PanelQuery(
                    expr=told("point", of("wattmesh_run_point_throughput_ratio", RUN)),
                    legend="{{point}} speed",
                ),
                PanelQuery(
                    expr=told("point, flags", of("wattmesh_run_point_power_ratio", RUN)),
                    legend="{{point}} watts {{flags}}",
                ),
            ),
            empty="no steady time was measured yet, or there is no catalogue",
        ),
    ),
)

PLAN = PanelRow(
    title="Plan against done",
    panels=(
        Panel(
            title="Time left: to the deadline, to the planned end, to spare",
            about="Seconds until the deadline, until the newest plan has the work done, and what "
            "the guard has to spare.",
            unit="s",
            queries=(
                PanelQuery(
                    expr=told("run_id", of("wattmesh_run_deadline_timestamp_seconds", RUN))
                    + " - time()",
                    legend="to the deadline",
                ),
                PanelQuery(
                    expr=told("run_id", of("wattmesh_plan_finish_timestamp_seconds", RUN))
                    + " - time()",
                    legend="to the planned end",
                ),
                PanelQuery(
                    expr=told("run_id", of("wattmesh_run_slack_seconds", RUN)), legend="slack"
                ),
            ),
            empty="the run has no deadline and no plan",
        ),
        Panel(
            title="Tokens",
            about="Tokens trained, beside those that are to be.",
            unit="short",
            queries=(
                PanelQuery(
                    expr=one("run_id", of("wattmesh_run_tokens_total", RUN)), legend="trained"
                ),
                PanelQuery(
                    expr=told("run_id", of("wattmesh_run_target_tokens", RUN)), legend="to train"
                ),
            ),
        ),
        Panel(
            title="Age of the plan, and the time it took",
            about="Seconds since the observation that the newest plan was made from. One that "
            "grows without end: the planner does not answer.",
            unit="s",
            queries=(
                PanelQuery(expr=told("run_id", of("wattmesh_plan_age_seconds", RUN)), legend="age"),
                PanelQuery(
                    expr=told("run_id", of("wattmesh_plan_solve_seconds", RUN)), legend="took"
                ),
            ),
            empty=NO_PLAN,
        ),
        Panel(
            title="Gap of the plan",
            about="Most that a better plan could save under the same forecast, as a share.",
            unit="percentunit",
            queries=(
                PanelQuery(expr=told("run_id", of("wattmesh_plan_gap_ratio", RUN)), legend="gap"),
            ),
            empty=NO_PLAN,
        ),
    ),
)

SWITCHES = PanelRow(
    title="Decisions and switches",
    panels=(
        Panel(
            title="Newest decision",
            about="What was decided last, by the key of its reason. The sentence with its numbers "
            "is no metric: `wattmesh why` of the run.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=told("action, reason", of("wattmesh_run_decision", RUN)),
                    legend="{{action}}: {{reason}}",
                ),
            ),
            kind=PanelKind.STATES,
            words=(("1", " "),),
            empty="the run is not live",
        ),
        Panel(
            title="Newest switch",
            about="Value: when it was ordered. From and to which point, by whom, why (the key of "
            "the decision), and where it is or how it ended. Older ones: `wattmesh why`.",
            unit="dateTimeAsIso",
            queries=(PanelQuery(expr=f"{SWITCH} * 1000", legend="{{from_point}} to {{to_point}}"),),
            kind=PanelKind.TABLE,
            empty="the run was never switched, or has finished",
        ),
        Panel(
            title="Switches that ended",
            about="Since the run began, by outcome. 0 is the truth: none ended so.",
            up_to=1,
            unit="none",
            queries=(
                PanelQuery(
                    expr=one("outcome", of("wattmesh_switches_total", RUN)), legend="{{outcome}}"
                ),
            ),
            decimals=0,
            empty="the run has finished and was never switched",
        ),
        Panel(
            title="Checkpoints fail",
            about="Whether the newest save step left no checkpoint, as the run says.",
            unit="none",
            queries=(
                PanelQuery(
                    expr=told("run", of("wattmesh_run_checkpoint_failing", RUN)),
                    legend="no checkpoint",
                ),
            ),
            kind=PanelKind.STATES,
            words=tuple(YES_NO.items()),
            empty="the run has finished",
        ),
    ),
)

GRAMS = PanelRow(
    title="Grams",
    panels=(
        Panel(
            title="Saved against the baseline",
            about="Settled saving against the point that the run was submitted at (in the legend), "
            "in the chosen signal: lower and upper end. The lower end is the claim.",
            unit="massg",
            queries=(
                PanelQuery(
                    expr=told(
                        "baseline, signal, boundary, flags",
                        of("wattmesh_carbon_saved_grams", PRICED),
                    ),
                    legend="at least, against {{baseline}} ({{signal}}, {{boundary}}) {{flags}}",
                ),
                PanelQuery(
                    expr=told(
                        "baseline, signal, boundary, flags",
                        of("wattmesh_carbon_saved_high_grams", PRICED),
                    ),
                    legend="at most, against {{baseline}} ({{signal}}, {{boundary}}) {{flags}}",
                ),
                PanelQuery(
                    expr=told("part", of("wattmesh_carbon_saved_part_grams", PRICED)),
                    legend="of it: {{part}}",
                ),
            ),
            empty="the saving or its parts are not settled yet, or the run has no baseline",
        ),
        Panel(
            title="Grams an hour",
            about="As first reported, over the last hour, in the chosen signal.",
            unit=G_PER_HOUR,
            queries=(
                PanelQuery(expr=f"sum by (line) ({grams_per_hour(PRICED)})", legend="{{line}}"),
            ),
        ),
        Panel(
            title="Grams in all",
            about="Emitted by the newest values of the signal, and the most that unobserved time "
            "adds (an estimate; 0 is the truth where all was measured).",
            unit="massg",
            queries=(
                PanelQuery(
                    expr=one("line", of("wattmesh_carbon_restated_grams", PRICED)),
                    legend="{{line}}",
                ),
                PanelQuery(
                    expr=told("line", of("wattmesh_unobserved_upper_grams", PRICED)),
                    legend="{{line}}, unobserved at most (estimated)",
                ),
            ),
        ),
        Panel(
            title="What the grams are",
            about="Whether any gram is simulated, estimated or provisional.",
            unit="none",
            queries=(
                PanelQuery(expr=one("flag", of("wattmesh_carbon_flag", PRICED)), legend="{{flag}}"),
            ),
            kind=PanelKind.STATES,
            words=tuple(YES_NO.items()),
        ),
    ),
)

BOARD = DashboardSpec(
    uid="wattmesh-run",
    title="wattmesh: one run",
    about="Layouts of one run under the grid, plan against done, switches, grams.",
    variables=(CHOOSE_CLUSTER, CHOOSE_RUN, CHOOSE_RUN_ID, CHOOSE_SIGNAL),
    rows=(NOW, OVER_TIME, PLAN, SWITCHES, GRAMS),
    marks=(
        Marks(
            name="Switches",
            expr=f"{SWITCH} * 1000",
            title="{{from_point}} to {{to_point}}: {{state}}",
            text="asked by {{by}}, because: {{reason}} (wattmesh why {{run}} has the sentence)",
        ),
    ),
)
