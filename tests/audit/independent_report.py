"""Check the report of a month against the raw rows of its runs, to the microgram.

    wattmesh report --month 2026-10 --json > report.json
    wattmesh budget --audit llama-8b --json > llama-8b.json
    python tests/audit/independent_report.py report.json llama-8b.json ...

Uses nothing of wattmesh, only the formulas of docs/carbon-accounting.md and docs/reports.md. Prints
what it found and exits 0 when every figure agrees, 1 when one does not, 2 when it cannot read a
file. Rows that retention has summed up cannot be checked: give it a month that still has its slots.
"""

import json
import sys
from collections import Counter
from datetime import datetime
from fractions import Fraction
from math import floor, isclose
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MJ_PER_KWH = 3_600_000_000
BILLION = 10**9
AMOUNTS = ("energy_mj", "carbon_ug", "unpriced_mj")


def grams_ug(row: Row) -> int | None:
    """Give a row's micrograms, half up, by exact fractions; None where it has no price."""
    if row["energy_mj"] is None or row["g_milli_per_kwh"] is None:
        return None
    exact = Fraction(row["energy_mj"] * row["pue_milli"] * row["g_milli_per_kwh"], MJ_PER_KWH)
    return floor(exact + Fraction(1, 2))


def in_month(report: Row, row: Row) -> bool:
    """Whether a slot lies in the month; one that lies in two is in none, and is missed below."""
    start, end = (datetime.fromisoformat(report[name]) for name in ("start", "end"))
    begins, ends = (datetime.fromisoformat(row[name]) for name in ("slot_start", "slot_end"))
    return start <= begins and ends <= end


def check_run(report: Row, audit: Row) -> list[str]:
    """Compare a run's lines with its rows."""
    run, wrong = audit["run"], []
    found: Counter[tuple[str, str]] = Counter()
    facility = 0
    for row in audit["actual"]:
        if row["line"] != "run" or not in_month(report, row):
            continue
        expected = grams_ug(row)
        if expected != row["carbon_ug"]:
            wrong.append(f"{run} {row['slot_start']}: says {row['carbon_ug']}, is {expected} ug")
        energy_mj = row["energy_mj"] or 0
        facility += energy_mj * row["pue_milli"]
        found[row["signal"], "energy_mj"] += energy_mj
        found[row["signal"], "carbon_ug"] += expected or 0
        found[row["signal"], "unpriced_mj"] += energy_mj if expected is None else 0
    lines = [each for each in report["lines"] if each["run"] == run]
    for line in (each for each in lines if each["scenario"] == "location"):
        for name in AMOUNTS:
            told, rows = line[name], found.pop((line["signal"], name), 0)
            if told != rows:
                wrong.append(f"{run} {line['signal']} {name}: says {told}, its rows {rows}")
    wrong += [f"{run} {place}: {left} is in no line" for place, left in found.items() if left]
    for subject in (each for each in report["subjects"] if each["run"] == run):
        if subject["facility_mj"] not in (None, (facility + 500) // 1000):
            wrong.append(f"{run} facility_mj: says {subject['facility_mj']}, is {facility} / 1000")
    return wrong


def check_totals(report: Row) -> list[str]:
    """Add the lines of each scenario and signal up."""
    wrong = []
    sums: Counter[tuple[str, str, str]] = Counter()
    for line in report["lines"]:
        for name in AMOUNTS:
            sums[line["scenario"], line["signal"], name] += line[name]
    for total in report["totals"]:
        for name in AMOUNTS:
            place = (total["scenario"], total["signal"], name)
            if total[name] != sums.pop(place, 0):
                wrong.append(f"total of {place} is not the sum of its lines")
    return wrong + [f"{place} is in no total" for place, left in sums.items() if left]


def check_cluster(report: Row) -> list[str]:
    """Add runs, scenarios, days and contracts up; nothing may be netted, lost or counted twice."""
    wrong = []
    for name in AMOUNTS:
        whole = sum(each[name] for each in report["subjects"])
        located = sum(each[name] for each in report["totals"] if each["scenario"] == "location")
        if not whole == located == report[name]:
            told = report[name]
            wrong.append(f"{name}: subjects {whole}, location-based {located}, cluster {told}")
    covered = [each["energy_mj"] for each in report["totals"] if each["scenario"] == "market"]
    if covered and sum(covered) != report["energy_mj"]:
        wrong.append(f"contracts have {sum(covered)} mJ in all, the cluster {report['energy_mj']}")
    if sum(each["carbon_ug"] for each in report["days"]) != report["carbon_ug"]:
        wrong.append("days are not the month")
    return wrong


def check_per_token(report: Row) -> list[str]:
    """Recompute SCI = (E x I + M) / R of every run that tells it; contracts are not in it."""
    wrong = []
    for each in report["subjects"]:
        if each["sci_g"] is None:
            continue
        grams = Fraction(each["carbon_ug"] + each["embodied_ug"], 10**6)
        expected = float(grams * BILLION / each["tokens"])
        if not isclose(each["sci_g"], expected, rel_tol=1e-12):
            wrong.append(f"{each['subject']} sci_g: says {each['sci_g']}, is {expected}")
    return wrong


def differences(report: Row, audits: list[Row]) -> list[str]:
    """List everything that does not agree, in words."""
    known = {each["run"] for each in audits}
    missing = [
        f"{each['subject']}: no audit was given, so its grams are not checked"
        for each in report["subjects"]
        if each["kind"] == "run" and each["run"] not in known
    ]
    of_runs = [wrong for audit in audits for wrong in check_run(report, audit)]
    sums = [*check_totals(report), *check_cluster(report), *check_per_token(report)]
    return [*missing, *of_runs, *sums]


def main(arguments: list[str]) -> int:
    """Read a report and audits, print the verdict, give the exit status."""
    try:
        report, *audits = (json.loads(Path(each).read_text("utf-8")) for each in arguments)
        wrong = differences(report, audits)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"cannot be read: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    for each in wrong:
        print(f"DIFFERS  {each}")
    print(f"{report['month']}  {report['carbon_ug']} ug  {len(audits)} runs audited")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
