"""Whether every joule, watt and gram says what it is: of a screen, of JSON, of metrics.

Each check lists what lacks its mark, in words; nothing is listed where all is well.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

SHORT = {"estimated": "est", "provisional": "prov", "simulated": "sim"}

SHOWN = re.compile(
    r"(?<![\w.:])-?\d[\d,]*(?:\.\d+)? (?:[kmµu]?g|t|[kM]?W|[kM]?J|[kM]Wh)\b(?!/)(?: ([a-z+]+)\b)?"
)
"""A quantity on a screen, and the word behind it."""

SET = re.compile(r"(?:of|above|by now|plan has|limit of +) *$")
"""Stands before what people have set: a limit is exact."""

BARE = ("J/TOKEN", "G/10^6 TOKENS")
"""Columns whose unit stands in their title."""

KEYS = re.compile(r"(?:_mj|_j|_ug|_g|_w|^grams|^j_per_token|_w_per_gpu|_g_per_gpu_hour)$")
"""Keys of joules, watts and grams; an intensity is none of them."""

LIMITS = {"limit_g", "planned_ug", "expected_g", "cap_w"}
"""What people set, and plans that spread it."""

METRIC = re.compile(r"_(?:joules|watts|grams)(?:_total)?$")
UNFLAGGED = {
    "wattmesh_budget_limit_grams",
    "wattmesh_budget_planned_grams",
    "wattmesh_gpu_power_limit_watts",
}
"""Limits."""

BESIDE = {
    "wattmesh_energy_joules_total": "wattmesh_energy_flag",
    "wattmesh_unobserved_upper_joules": "wattmesh_energy_flag",
    "wattmesh_carbon_first_reported_grams_total": "wattmesh_carbon_flag",
    "wattmesh_carbon_restated_grams": "wattmesh_carbon_flag",
    "wattmesh_unobserved_upper_grams": "wattmesh_carbon_flag",
    "wattmesh_gpu_energy_joules_total": "wattmesh_gpu_info",
    "wattmesh_gpu_power_watts": "wattmesh_gpu_info",
    "wattmesh_cpu_energy_joules_total": "wattmesh_host_info",
    "wattmesh_dram_energy_joules_total": "wattmesh_host_info",
    "wattmesh_node_residual_power_watts": "wattmesh_host_info",
}
"""Where the flags of a series stand whose own labels may not change."""


def bare_on(screen: str, flags: Sequence[str]) -> list[str]:
    """List the quantities of a screen that do not say all these flags."""
    wanted = {SHORT[each] for each in flags}
    found = []
    for line in screen.splitlines():
        for each in SHOWN.finditer(line):
            nothing = float(each[0].split(" ")[0].replace(",", "")) == 0
            known = nothing or SET.search(line[: each.start()])
            if not known and not _says(each[1] or "", wanted):
                found.append(f"{each[0]!r} in: {line.strip()[:120]}")
    return found + [f"{cell!r} under {title}" for title, cell in _cells(screen, wanted)]


def _says(word: str, wanted: set[str]) -> bool:
    """Whether a mark has all that is wanted."""
    return wanted <= set(word.split("+"))


def _cells(screen: str, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Give the cells without a mark of columns whose unit stands in their title."""
    lines = screen.splitlines()
    for title in BARE:
        heads = [place for place, line in enumerate(lines) if title in line]
        for place in heads:
            end = lines[place].index(title) + len(title)
            for row in lines[place + 1 :]:
                if not row.strip():
                    break
                cell = row[:end].rstrip().rsplit("  ", 1)[-1].strip()
                if re.match(r"-?\d", cell) and not _says(cell.rpartition(" ")[2], wanted):
                    yield title, cell


def quantities(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """List every object that has a joule, a watt or a gram, with where it is."""
    return [(path, each) for path, each in _objects(value) if any(_amounts(each))]


def bare_in(answer: Any, flags: Sequence[str], where: str = "") -> list[str]:
    """List the quantities of a JSON answer beside which not all these flags stand."""
    wanted, found = set(flags), []
    for path, each in _objects(answer, where):
        said = set(each.get("flags", ()))
        found += [f"{path}.{key}: {sorted(said)}" for key in _amounts(each) if not wanted <= said]
        for key, text in each.items():
            if isinstance(text, str):
                found += [f"{path}.{key}: {one}" for one in bare_on(text, flags)]
    return found


def _amounts(each: Mapping[str, Any]) -> Iterator[str]:
    """Name the keys of an object that are joules, watts or grams; zero is of no kind."""
    for key, value in each.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and value and KEYS.search(key) and key not in LIMITS:
            yield key


def _objects(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Go through every object of an answer."""
    if isinstance(value, dict):
        yield path, value
        for key, each in value.items():
            yield from _objects(each, f"{path}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _objects(each, f"{path}[{number}]")


def bare_metrics(metrics: Iterable[Metric], flags: Sequence[str]) -> list[str]:
    """List the samples of joules, watts and grams of which not all these flags are told."""
    samples = [each for metric in metrics for each in metric.samples]
    told: dict[str, list[Mapping[str, str]]] = {}
    for each in samples:
        if each.name in BESIDE.values() and each.value == 1:
            told.setdefault(each.name, []).append(each.labels)
    found = []
    for each in samples:
        if not METRIC.search(each.name) or each.name in UNFLAGGED:
            continue
        if each.labels.get("figure") == "ordered":
            continue
        known = set(each.labels.get("flags", "").split("+"))
        for labels in told.get(BESIDE.get(each.name, ""), ()):
            shared = {key: value for key, value in labels.items() if key in each.labels}
            if shared.items() <= each.labels.items():
                known |= {labels.get("flag", ""), *labels.get("quality", "").split("+")}
        if not set(flags) <= known:
            found.append(f"{each.name} {dict(each.labels)}: {sorted(known)}")
    return found
