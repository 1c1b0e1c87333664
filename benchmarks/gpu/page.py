"""docs/gpu.md: what was measured on a GPU, part by part, every row of it.

Invariant: the page is made from the JSON and nothing else; null is "not measured".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.machine import in_words
from benchmarks.report import format_value

HEAD = """# Measured on a GPU

Written by `make gpu` from `benchmarks/gpu/measured.json`; do not edit. Everything was read and
nothing set: no clock, limit or mode of the GPU was changed. Each part says which machine it was
measured on. `make gpu ARGS="--part memory"` measures one part again and leaves the others.
"""

ABOUT = {
    "tests": "The tests marked `gpu`, which other machines skip.",
    "sensor": (
        "NVML's energy counter and powers, held against each other: no meter outside of the board "
        "was there. *call* is one call from Python; *moves every* is how often another value was "
        "seen while asking without a pause; *delay* is the time from a change of the load until a "
        "signal has gone half of its way, the counter by its slope. Integrals are by trapezoids "
        "over readings about every so many milliseconds. *bound* is what a burst says of itself, "
        "*beyond bound* how many bursts were further off than that."
    ),
    "memory": (
        "Gigabytes (10^9) per second, the median of five after one to warm up; of the copies that "
        "bound the rest, the best of five. A copy within the "
        "device counts bytes read and bytes written; everything else counts the tensor's bytes."
    ),
    "train": (
        "The example trainer, one rank, one microbatch, AdamW and an average of the parameters, "
        "8 layers of width 2048 over sequences of 1024 tokens (0.38 G parameters), eager. "
        "*model tflops* is 6 x parameters x tokens per second. Joules are the board's own counter "
        "over the counted steps."
    ),
    "compiled": (
        "The same model without the average under `torch.compile`. *cold*: empty caches; *warm*: "
        "another process with the caches that the first one left; *again*: the same process after "
        "what a switch forgets, with a model built anew."
    ),
    "switch": (
        "The example trainer under the real session, ordered every four steps, every 20 where the "
        "state is large, so that the checkpoint of the switch before is durable by then (*phase "
        "settle s* is the wait for it). Seconds are from the first rank that enters the boundary "
        "to the last that has done its first step in the new layout; *stage* and *digest* are "
        "parts of *save* and *verify*. *restart* is from the start of the processes, the save "
        "before it left out. *left after teardown* is the share of the old layout's device memory "
        "that was still allocated when the new one was built. *losses* are compared step by step "
        "with a run that never switches; *control* is the same difference between two runs that "
        "never switch."
    ),
    "switch_more": "Ranks that share the GPU over gloo, and a compiled model; columns as above.",
}
"""What a reader must know to read a part's rows."""


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    shown = [key for key in keys if any(row.get(key) is not None for row in rows)]
    return [
        "| " + " | ".join(key.replace("_", " ") for key in shown) + " |",
        "|" + "---|" * len(shown),
        *("| " + " | ".join(_cell(row, key) for key in shown) + " |" for row in rows),
    ]


def _cell(row: Mapping[str, Any], key: str) -> str:
    """A key that a row does not have says nothing; one whose value is null was not measured."""
    text = format_value(row[key]) if key in row else ""
    return text.replace("|", "\\|").replace("\n", " ")


def _tables(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One table for each run of rows that tell of the same things."""
    lines: list[str] = []
    group: list[Mapping[str, Any]] = []
    for row in rows:
        if group and not _alike(group[-1], row):
            lines += [*_table(group), ""]
            group = []
        group.append(row)
    return [*lines, *_table(group), ""] if group else lines


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether rows share half of their keys, or one only says why it has no figures."""
    most = max(len(one), len(other))
    return bool(one.get("note") or other.get("note")) or 2 * len(one.keys() & other.keys()) >= most


def _goals(goals: Sequence[Mapping[str, Any]]) -> list[str]:
    if not goals:
        return []
    lines = ["| goal | measured | must be | reached |", "|---|---|---|---|"]
    for each in goals:
        verdict = "yes" if each["ok"] else "**no**"
        must = f"{each['op']} {each['goal']:g}"
        lines.append(f"| `{each['name']}` | {format_value(each['value'])} | {must} | {verdict} |")
    return [*lines, ""]


def _section(part: Mapping[str, Any]) -> str:
    name = part["benchmark"]
    lines = [f"## {name}", "", ABOUT.get(name, ""), ""]
    lines += [f"Measured on {in_words(part['machine'])}; {part['seconds']:.0f} s.", ""]
    return "\n".join([*lines, *_goals(part["goals"]), *_tables(part["rows"])])


def render(measured: Mapping[str, Any]) -> str:
    """Write the page.

    Args:
        measured: the JSON: {"benchmark": "gpu", "parts": [one report each]}.
    """
    parts = [_section(each) for each in measured["parts"]]
    missing = [
        name for name in ABOUT if name not in {each["benchmark"] for each in measured["parts"]}
    ]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.\n")
    return "\n".join([HEAD, *parts]).rstrip() + "\n"
