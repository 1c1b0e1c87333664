"""docs/reference/metrics.md: every metric that the daemon serves, read off the source.

Reading the source, and not a running daemon, finds the metrics that only some moments show.
Invariant: a metric whose name, help or labels are not plain text in the code is an error here.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from scripts.pages.markdown import code, page, table

SUFFIX = {"CounterMetricFamily": "_total", "GaugeMetricFamily": "", "InfoMetricFamily": "_info"}

INTRODUCTION = """Served at `metrics.listen` (default `http://127.0.0.1:9464/metrics`), read-only.
Counters are absolute values from the journal: they survive a restart of the daemon. A value that is
unknown has no sample; it is never 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDoc:
    """One metric by the name that a query uses."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics() -> list[MetricDoc]:
    """List every metric, by name."""
    source = files("wattmesh.controller").joinpath("metrics.py").read_text("utf-8")
    return sorted(_in_source(source), key=lambda metric: metric.name)


def _in_source(source: str) -> Iterator[MetricDoc]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            family = node.func.id
            if family in SUFFIX:
                name, meaning = (ast.literal_eval(argument) for argument in node.args[:2])
                given = {word.arg: word.value for word in node.keywords if word.arg}
                labels = ast.literal_eval(given["labels"]) if "labels" in given else ()
                yield MetricDoc(
                    name=name + SUFFIX[family],
                    kind=family.removesuffix("MetricFamily").lower(),
                    labels=tuple(labels),
                    meaning=meaning,
                )


def render() -> str:
    """Write the page."""
    rows = (
        (code(metric.name), metric.kind, ", ".join(map(code, metric.labels)), metric.meaning)
        for metric in metrics()
    )
    return page("Metrics", INTRODUCTION, table(("metric", "type", "labels", "meaning"), rows))
