"""Recompute a saving from the raw rows of `wattmesh budget --audit RUN --json`, to the microgram.

    wattmesh budget --audit llama-8b --json | python tests/audit/independent.py
    python tests/audit/independent.py audit.json

Uses nothing of wattmesh, only the formulas of docs/carbon-accounting.md. Prints what it found and
exits 0 when every figure and every row agrees, 1 when one does not, 2 when it cannot read the file.
"""

import json
import sys
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MJ_PER_KWH = 3_600_000_000
MILLI_G_TO_UG = 1000


def grams_ug(energy_mj: int, g_milli_per_kwh: int, pue_milli: int) -> int:
    """Give micrograms, half up, by exact fractions."""
    pue = Fraction(pue_milli, 1000)
    exact = Fraction(energy_mj, MJ_PER_KWH) * pue * g_milli_per_kwh * MILLI_G_TO_UG
    return floor(exact + Fraction(1, 2))


def check_rows(name: str, rows: list[Row]) -> list[str]:
    """Recompute the grams of every row; find rows that lie upon each other."""
    wrong, seen = [], set()
    for row in rows:
        where = f"{name} row {row['slot_start']} {row['gpu_uuid']}".rstrip()
        place = (row["gpu_uuid"], row["slot_start"], row["line"])
        if place in seen:
            wrong.append(f"{where}: is there twice")
        seen.add(place)
        known = row["energy_mj"] is not None and row["g_milli_per_kwh"] is not None
        priced = (row["energy_mj"], row["g_milli_per_kwh"], row["pue_milli"])
        expected = grams_ug(*priced) if known else None
        if row["carbon_ug"] != expected:
            wrong.append(f"{where}: says {row['carbon_ug']} ug, is {expected} ug")
        if (row["energy_mj"] or 0) < 0 or row["tokens"] < 0:
            wrong.append(f"{where}: is negative")
    return wrong


def reference_ug(rows: list[Row], tokens: int, earlier_tokens: int) -> tuple[int | None, bool]:
    """Give the baseline's micrograms at `tokens` (without the earlier ones); whether it got there.

    Token after token would give the same: whole slots first, then a share rounded down.
    """
    needed, found = tokens - earlier_tokens, 0
    if needed < 0 or not (rows or earlier_tokens):
        return None, False
    for row in sorted(rows, key=lambda each: str(each["slot_start"])):
        if needed <= 0:
            break
        if row["carbon_ug"] is None:
            return None, False
        taken = min(needed, row["tokens"])
        share = Fraction(taken, row["tokens"]) if row["tokens"] else Fraction(1)
        found += floor(row["carbon_ug"] * share)
        needed -= taken
    return found, needed <= 0


def unobserved_ug(audit: Row) -> int | None:
    """Give the most that was emitted while nobody measured; None when it cannot be bounded."""
    dearest: dict[str, tuple[int, int, int]] = {}
    for row in [*audit["actual"], *audit["reference"]]:
        if row["g_milli_per_kwh"] is not None:
            slot, g_milli, pue_milli = row["slot_start"], row["g_milli_per_kwh"], row["pue_milli"]
            rate = (g_milli * pue_milli, g_milli, pue_milli)
            dearest[slot] = max(dearest.get(slot, (0, 0, 0)), rate)
    most = 0
    for row in audit["energy"]:
        blind = row["energy_mj"] is None and row["unobserved_ms"] and not row["upper_mj"]
        if blind or (row["upper_mj"] and row["slot_start"] not in dearest):
            return None
        _, g_milli, pue_milli = dearest.get(row["slot_start"], (0, 0, 0))
        most += grams_ug(row["upper_mj"], g_milli, pue_milli)
    return most


def check_joules(audit: Row) -> list[str]:
    """Compare the actual rows with the energy they were computed from."""
    energy, actual = (
        {(row["gpu_uuid"], row["slot_start"], row["line"]): row["energy_mj"] for row in audit[part]}
        for part in ("energy", "actual")
    )
    wrong = [
        f"actual row {slot} {gpu}: has no energy row" for gpu, slot, _ in actual.keys() - energy
    ]
    if audit["unbooked_mj"] == 0:
        wrong += [
            f"energy row {place[1]} {place[0]}: {mj} mJ, the actual row has {actual.get(place)} mJ"
            for place, mj in energy.items()
            if mj != actual.get(place) and place not in actual.keys() - energy
        ]
    return wrong


def recomputed(audit: Row) -> dict[str, int | None]:
    """Give every figure from the rows alone."""
    actual = audit["earlier_actual_ug"] + sum(row["carbon_ug"] or 0 for row in audit["actual"])
    reference, reached = reference_ug(audit["reference"], audit["tokens"], audit["earlier_tokens"])
    if reference is not None:
        reference += audit["earlier_reference_ug"]
    unobserved = unobserved_ug(audit)
    whole = all(row["carbon_ug"] is not None for row in audit["actual"] if row["energy_mj"])
    told = reached and whole and reference is not None and unobserved is not None
    return {
        "actual_ug": actual,
        "reference_ug": reference,
        "unobserved_ug": unobserved,
        "saved_ug": (reference or 0) - actual - (unobserved or 0) if told else None,
        "unbooked_mj": sum(row["energy_mj"] or 0 for row in audit["energy"])
        - sum(row["energy_mj"] or 0 for row in audit["actual"]),
    }


def differences(audit: Row) -> list[str]:
    """List everything that does not agree, in words."""
    wrong = check_rows("actual", audit["actual"]) + check_rows("baseline", audit["reference"])
    wrong += check_joules(audit)
    for name, value in recomputed(audit).items():
        # A saving that is withheld for a reason in rolled up slots cannot be judged from rows.
        withheld = name == "saved_ug" and audit[name] is None and audit["earlier_tokens"]
        if audit[name] != value and not withheld:
            wrong.append(f"{name}: the audit says {audit[name]}, the rows say {value}")
    return wrong


def main(arguments: list[str]) -> int:
    """Read an audit, print the verdict, give the exit status."""
    try:
        text = Path(arguments[0]).read_text(encoding="utf-8") if arguments else sys.stdin.read()
        audit = json.loads(text)
        wrong = differences(audit)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"cannot be read as an audit: {error!r}", file=sys.stderr)
        return 2
    for name, value in recomputed(audit).items():
        print(f"{name:14} {value}")
    for sentence in wrong:
        print(f"DIFFERS  {sentence}")
    rows = len(audit["actual"]) + len(audit["reference"])
    print("differs" if wrong else f"equal to the microgram over {rows} rows")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
