"""What a panel must have, and how it becomes one of Grafana's.

Invariant: every panel has a title, a unit, a legend for each query and a description in plain
words; where it may be empty in a healthy system the description ends in why.
"""

import json
import string
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
DATE_WIDE = 180
"""Of a table's column, in pixels."""
YES_NO = {"0": "no", "1": "yes"}

Builder = bargauge.Panel | stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel


class PanelKind(StrEnum):
    """How a panel shows its series."""

    LINES = "lines"
    STACK = "stack"
    NUMBER = "number"
    STATES = "states"
    TABLE = "table"
    BARS = "bars"


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    """One query. `legend`: what a series is called; `{{label}}` stands for a label's value."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        about: the description, for a person who sees the panel for the first time.
        unit: one of Grafana's unit ids; "none" for a count.
        empty: why it may have no series in a healthy system; "": it always has some.
        band: names of the two series between which the area is filled.
        words: what numbers mean.
        red_from: value from which it is red; None: nothing is.
        up_to: the axis reaches from 0 to this at least, so that zeros are not drawn on a scale
            that nobody would expect.
    """

    title: str
    about: str
    unit: str
    queries: tuple[PanelQuery, ...]
    kind: PanelKind = PanelKind.LINES
    wide: int = 12
    high: int = 8
    empty: str = ""
    band: tuple[str, str] | None = None
    words: tuple[tuple[str, str], ...] = ()
    red_from: float | None = None
    decimals: int | None = None
    up_to: float | None = None

    @property
    def description(self) -> str:
        """What Grafana shows behind the i."""
        return f"{self.about} Empty: {self.empty}." if self.empty else self.about


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelRow:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardVariable:
    """A choice at the top. `every`: all may be chosen together, and are at first."""

    name: str
    label: str
    query: str
    about: str
    every: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Annotations: one at each moment that is the value of a series, in milliseconds."""

    name: str
    expr: str
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSpec:
    """One dashboard."""

    uid: str
    title: str
    about: str
    variables: tuple[DashboardVariable, ...]
    rows: tuple[PanelRow, ...]
    marks: tuple[Marks, ...] = ()
    since: str = "now-24h"

    def panels(self) -> Iterator[Panel]:
        """Give every panel, from top to bottom."""
        for row in self.rows:
            yield from row.panels


def encode(board: DashboardSpec) -> str:
    """Write the dashboard as the JSON that Grafana imports."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["wattmesh"])
        .timezone("browser")
        .refresh("30s")
        .time(board.since, "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(_siblings())
        .with_variable(_datasource())
    )
    for each in board.variables:
        made = made.with_variable(_variable(each))
    top, number = 0, 1
    for row in board.rows:
        place = models.GridPos(h=1, w=WIDTH, x=0, y=top)
        made = made.with_row(dashboard.Row(row.title).id(number).grid_pos(place))
        number, top = number + 1, top + 1
        left, tallest = 0, 0
        for panel in row.panels:
            if left + panel.wide > WIDTH:
                left, top, tallest = 0, top + tallest, 0
            place = models.GridPos(h=panel.high, w=panel.wide, x=left, y=top)
            made = made.with_panel(_panel(panel).id(number).grid_pos(place))
            number, left, tallest = number + 1, left + panel.wide, max(tallest, panel.high)
        top += tallest
    found = json.loads(JSONEncoder(sort_keys=True).encode(made.build()))
    # The schema of annotations is Grafana's; what a Prometheus one has beyond it is the plugin's.
    found["annotations"] = {"list": [_marks(each) for each in board.marks]}
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _panel(panel: Panel) -> Builder:
    made = _kind(panel)
    made = made.title(panel.title).description(panel.description).datasource(SOURCE)
    if panel.kind is PanelKind.TABLE:
        # Of a table's text columns a unit would make dates and seconds.
        of_value = [models.DynamicConfigValue(id_val="unit", value=panel.unit)]
        if panel.unit == "none":
            # It says no more than that the row is there.
            of_value.append(models.DynamicConfigValue(id_val="custom.hidden", value=True))
        if panel.unit.startswith("dateTime"):
            of_value.append(models.DynamicConfigValue(id_val="custom.width", value=DATE_WIDE))
        made = made.override_by_name("Value", of_value)
    else:
        made = made.unit(panel.unit)
    # Of lines it would stand at ticks of the axis too, of a table in each cell without a label.
    if panel.kind not in (PanelKind.LINES, PanelKind.STACK, PanelKind.TABLE):
        made = made.no_value(f"no data: {panel.empty or 'not known'}")
    if panel.decimals is not None:
        made = made.decimals(panel.decimals)
    if panel.words:
        options = {
            value: models.ValueMappingResult(text=text, index=index)
            for index, (value, text) in enumerate(panel.words)
        }
        made = made.mappings([models.ValueMap(options=options)])
    steps = [models.Threshold(value=None, color="green")]
    if panel.red_from is not None:
        steps.append(models.Threshold(value=panel.red_from, color="red"))
    made = made.thresholds(
        dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
    )
    for letter, query in zip(string.ascii_uppercase, panel.queries, strict=False):
        made = made.with_target(_target(panel, query, letter))
    return made


def _kind(panel: Panel) -> Builder:
    """Begin a panel of its kind, with the options that Grafana needs for it."""
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    legend = (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(shapes.LegendDisplayMode.TABLE)
        .placement(shapes.LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "max"])
    )
    if panel.kind is PanelKind.NUMBER:
        return stat.Panel().reduce_options(last).text_mode(shapes.BigValueTextMode.VALUE_AND_NAME)
    if panel.kind is PanelKind.BARS:
        across = shapes.VizOrientation.HORIZONTAL
        return bargauge.Panel().reduce_options(last).orientation(across)
    if panel.kind is PanelKind.STATES:
        return statetimeline.Panel().merge_values(True).row_height(0.8).fill_opacity(70)
    if panel.kind is PanelKind.TABLE:
        hidden = [models.DynamicConfigValue(id_val="custom.hidden", value=True)]
        # At the end the value would lie outside a panel of half the width.
        first = models.DataTransformerConfig(
            id_val="organize", options={"indexByName": {"Value": 0}, "excludeByName": {}}
        )
        found = table.Panel().override_by_name("Time", hidden).filterable(True)
        return found.with_transformation(first)
    lines = timeseries.Panel().legend(legend).line_width(1).span_nulls(False)
    if panel.up_to is not None:
        lines = lines.axis_soft_min(0).axis_soft_max(panel.up_to)
    if panel.kind is PanelKind.STACK:
        stacking = common.StackingConfig().mode(shapes.StackingMode.NORMAL)
        return lines.stacking(stacking).fill_opacity(40).axis_soft_min(0)
    if panel.band is not None:
        low, high = panel.band
        lines = lines.override_by_name(
            high,
            [
                models.DynamicConfigValue(id_val="custom.fillBelowTo", value=low),
                models.DynamicConfigValue(id_val="custom.fillOpacity", value=15),
                models.DynamicConfigValue(id_val="custom.lineWidth", value=0),
            ],
        )
    return lines.fill_opacity(0)


def _target(panel: Panel, query: PanelQuery, letter: str) -> prometheus.Dataquery:
    made = (
        prometheus.Dataquery()
        .ref_id(letter)
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
    )
    if panel.kind is PanelKind.TABLE:
        return made.instant().format(PromQueryFormat.TABLE)
    # Over a range the last value of a series that has ended would stand beside the one of now.
    now = panel.kind in (PanelKind.NUMBER, PanelKind.BARS)
    shape = made.format(PromQueryFormat.TIME_SERIES)
    return shape.instant() if now else shape.range()


def _datasource() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _variable(each: DashboardVariable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(each.name)
        .label(each.label)
        .description(each.about)
        .datasource(SOURCE)
        .query({"query": each.query, "refId": each.name, "qryType": 1})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(each.every)
        .include_all(each.every)
    )
    # `.*` and not a list of all: a series without the label is chosen too.
    return made.all_value(".*") if each.every else made


def _siblings() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("wattmesh")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["wattmesh"])
        .as_dropdown(False)
        .keep_time(True)
    )


def _marks(each: Marks) -> dict[str, Any]:
    return {
        "name": each.name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": True,
        "hide": False,
        "iconColor": "blue",
        "expr": each.expr,
        "step": "60s",
        "titleFormat": each.title,
        "textFormat": each.text,
        "useValueForTime": True,
    }
