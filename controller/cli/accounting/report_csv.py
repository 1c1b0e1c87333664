"""The report as a table for spreadsheets. Pure.

One row per run or line, scenario, signal and declared fallback that stands in for it. Invariant:
amounts are the ledger's whole millijoules and micrograms written in joules and grams, so nothing is
lost to rounding, and rows of one scenario and signal add up to its total; each row carries its
flags.
"""

import csv
from collections.abc import Mapping
from io import StringIO
from typing import Any

COLUMNS = (
    "month",
    "timezone",
    "state",
    "subject",
    "kind",
    "run",
    "scenario",
    "signal",
    "stand_in",
    "energy_j",
    "carbon_gco2",
    "unpriced_j",
    "energy_boundary",
    "pue",
    "flags",
)


def as_csv(view: Mapping[str, Any]) -> str:
    """Write the answer of `GET /v1/report` as CSV (RFC 4180), header first."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    state = "closed" if view["closed_at"] else "running" if view["running"] else "open"
    for line in view["lines"]:
        writer.writerow(
            (
                view["month"],
                view["timezone"],
                state,
                _plain(line["subject"]),
                line["kind"],
                line["run"],
                line["scenario"],
                _plain(line["signal"]),
                _plain(line["stand_in"]),
                _decimal(line["energy_mj"], 3),
                _decimal(line["carbon_ug"], 6),
                _decimal(line["unpriced_mj"], 3),
                view["boundary"],
                "" if view["pue"] is None else view["pue"],
                "+".join(line["flags"]),
            )
        )
    return text.getvalue()


def _decimal(amount: int, digits: int) -> str:
    """Write a whole number of thousandths or millionths exactly."""
    sign, amount = ("-" if amount < 0 else ""), abs(amount)
    return f"{sign}{amount // 10**digits}.{amount % 10**digits:0{digits}d}"


def _plain(text: str) -> str:
    """Keep a spreadsheet from taking a name for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text
