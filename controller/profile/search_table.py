"""The `[search]` table of a job file: of which points a profile chooses what to measure next.

    [search]
    gpu = "h100"
    model = "llama3-8b"            # or hf_config = "config.json"; relative to this file
    grid = "gb-2023-05-26.csv"     # a recorded trace; relative to this file
    deadline_h = 20
    most = 8                       # points that are proposed at most

Invariant: only the table's form is checked here; what the cost model says of it, the child process
tells that reads model and grid.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wattmesh.reconfig.tables import Table

DEGREES = ("tp", "pp", "cp", "dp", "ep")
MOST_POINTS = 100
LONGEST_H = 8784.0
HIGHEST_MHZ = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTable:
    """Of which points the next one is chosen, and for what.

    Attributes:
        gpu: its class, by name. `gpus`: numbers of GPUs to search; empty: all of the job's.
        model: by name, or "". `hf_config`: its config.json, or None.
        grid: trace of the grid. `deadline_h`: hours that the job may take. `tokens`: until then.
        most: points that are proposed at most, those at which the job fails among them.
        least_saving: share of the grams of the measured points below which no point is worth it.
        clocks_mhz: beside the full one. `highest_mhz`: at which the GPUs run when nothing is
            locked.
        zero, micro_batches, recompute, degrees: what the job can run
            (`wattmesh.policies.layout_search.runnable.JobLimits`).
    """

    gpu: str
    grid: Path
    deadline_h: float
    gpus: tuple[int, ...] = ()
    model: str = ""
    hf_config: Path | None = None
    tokens: float = 0.0
    most: int = 8
    least_saving: float = 0.01
    clocks_mhz: tuple[int, ...] = ()
    highest_mhz: int = 0
    zero: int = 1
    micro_batches: tuple[int, ...] = ()
    recompute: bool = False
    degrees: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def read_search(top: Table, folder: Path) -> SearchTable | None:
    """Read the table; None without one. Mistakes are noted.

    `folder`: to which files are relative.
    """
    if "search" not in top.values:
        return None
    table = top.table("search")
    hf_config = table.text("hf_config", "")
    found = SearchTable(
        gpu=table.text("gpu"),
        gpus=_wholes(table, "gpus"),
        model=table.text("model", ""),
        hf_config=folder / hf_config if hf_config else None,
        grid=folder / table.text("grid"),
        deadline_h=table.number("deadline_h", above=0),
        tokens=table.number("tokens", 0.0),
        most=table.whole("most", 8, least=1),
        least_saving=table.number("least_saving", 0.01),
        clocks_mhz=_wholes(table, "clocks_mhz"),
        highest_mhz=table.whole("highest_mhz", 0),
        zero=table.whole("zero", 1),
        micro_batches=_wholes(table, "micro_batches"),
        recompute=table.flag("recompute", False),
        degrees=_degrees(table),
    )
    table.finish(also=("gpus", "clocks_mhz", "micro_batches"))
    _check(table, found)
    return found


def check_search(table: SearchTable, top: Table, *, processes: int, sizes: bool) -> None:
    """Note what of a search contradicts the job.

    Args:
        table: that was read.
        top: of the file.
        processes: of the job.
        sizes: whether the job states its batch, the length of a sample and its tokens.
    """
    found = Table(top.values["search"], "search", top.mistakes)
    if not sizes:
        found.note(
            "tokens",
            "needs the sizes of the job: set job.global_batch, job.seq_len, and job.tokens_total "
            "or search.tokens",
        )
    if any(each > processes for each in table.gpus):
        found.note("gpus", f"{max(table.gpus)} are more than the job's {processes} processes")


def _check(table: Table, found: SearchTable) -> None:
    """Note what contradicts itself."""
    if bool(found.model) == (found.hf_config is not None):
        table.note("model", "or hf_config must be given, and not both")
    if found.most > MOST_POINTS:
        table.note("most", f"{found.most} must be at most {MOST_POINTS}")
    if not 1 <= found.deadline_h <= LONGEST_H:
        table.note("deadline_h", f"{found.deadline_h:g} must be 1 to {LONGEST_H:g} hours")
    if found.least_saving >= 1:
        table.note("least_saving", f"{found.least_saving:g} is a share, and must be below 1")
    if found.zero > 3:
        table.note("zero", f"{found.zero} must be 0, 1, 2 or 3")
    if found.clocks_mhz and not max(found.clocks_mhz) < found.highest_mhz <= HIGHEST_MHZ:
        table.note(
            "highest_mhz",
            "must be above every one of clocks_mhz: the clock at which the GPUs run unlocked, up "
            f"to {HIGHEST_MHZ}",
        )


def _degrees(table: Table) -> dict[str, tuple[int, ...]]:
    inner = table.table("degrees", required=False)
    found = {name: _wholes(inner, name) for name in DEGREES if name in inner.values}
    inner.finish(also=DEGREES)
    return found


def _wholes(table: Table, key: str) -> tuple[int, ...]:
    """Read a list of whole numbers, each at least 1; empty when absent."""
    value = table.values.get(key, [])
    if (
        isinstance(value, list)
        and len(value) <= MOST_POINTS
        and all(type(each) is int and 1 <= each < 1 << 31 for each in value)
        and (value or key not in table.values)
    ):
        return tuple(dict.fromkeys(value))
    table.note(key, f"must be a list of 1 to {MOST_POINTS} whole numbers, each at least 1")
    return ()
