"""Recompute a saving from the raw rows of `wattmesh budget --audit RUN --json`, to the microgram.

    wattmesh budget --audit llama-8b --json | python tests/audit/independent.py
    python tests/audit/independent.py audit.json

Uses nothing of wattmesh, only the formulas of docs/carbon-accounting.md, in exact fractions: each
token of a scenario has its share of its slot's grams. Prints what it found and exits 0 when every
figure and every row agrees, 1 when one does not, 2 when it cannot read the file.

What it cannot see: rows that are wrong and consistent. That a slot marked `as_run` was spent at the
submitted point, and that a modelled one has the right tokens and joules, is not in the rows.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MJ_PER_KWH = 3_600_000_000
MILLI_G_TO_UG = 1000
AS_RUN = "as_run"
SEVERAL = "several"
SPREAD = "spread"
KINDS = (AS_RUN, "modelled", "assumed")
HOSTS = ("cpu", "dram", "node")
SCENARIOS = {"reference": "baseline", "single": "best single"}


def grams_ug(energy_mj: int, g_milli_per_kwh: int, pue_milli: int) -> int:
    """Give micrograms, half up, by exact fractions."""
    pue = Fraction(pue_milli, 1000)
    exact = Fraction(energy_mj, MJ_PER_KWH) * pue * g_milli_per_kwh * MILLI_G_TO_UG
    return floor(exact + Fraction(1, 2))


def _place(row: Row) -> tuple[str, str, str]:
    """Give what no two rows of a scenario share."""
    return row["gpu_uuid"], row["slot_start"], row["line"]


def check_rows(name: str, rows: list[Row]) -> list[str]:
    """Recompute the grams of every row; find rows that lie upon each other."""
    wrong, seen = [], set()
    for row in rows:
        where = f"{name} row {row['slot_start']} {row['gpu_uuid']}".rstrip()
        if _place(row) in seen:
            wrong.append(f"{where}: is there twice")
        seen.add(_place(row))
        rate = (row["g_milli_per_kwh"], row["pue_milli"])
        priced = row["g_milli_per_kwh"] is not None
        known = priced and row["energy_mj"] is not None
        expected = {
            "carbon_ug": grams_ug(row["energy_mj"], *rate) if known else None,
            "upper_ug": grams_ug(row["upper_mj"], *rate) if priced else None,
        }
        for field, value in expected.items():
            if row[field] != value:
                wrong.append(f"{where}: says {row[field]} ug as {field}, is {value} ug")
        if (row["energy_mj"] or 0) < 0 or row["upper_mj"] < 0:
            wrong.append(f"{where}: is negative")
    return wrong


def check_scenario(name: str, rows: list[Row]) -> list[str]:
    """Find what no scenario can be: two rows of one slot, joules of its own beside the run's."""
    wrong, starts = [], set()
    for row in sorted(rows, key=_start):
        where = f"{name} row {row['slot_start']}"
        if row["slot_start"] in starts:
            wrong.append(f"{where}: has another beside it")
        starts.add(row["slot_start"])
        if row["line"] not in KINDS:
            wrong.append(f"{where}: is of no kind: {row['line']!r}")
        elif row["line"] == AS_RUN and (row["energy_mj"] is not None or row["upper_mj"]):
            wrong.append(f"{where}: stands for the run, and has joules of its own")
        elif row["line"] != AS_RUN and (row["energy_mj"] is None or row["tokens"] < 0):
            wrong.append(f"{where}: has no joules, or tokens below 0")
    return wrong


def _start(row: Row) -> datetime:
    """Give when a row's slot begins."""
    return datetime.fromisoformat(row["slot_start"])


@dataclass(frozen=True)
class Slot:
    """One slot: what the run emitted beside what a scenario did. None: it has no price.

    `row`: the scenario's; None where it has none there. `laid`: the run's, of joules that were laid
    over several slots by time.
    """

    own_ug: int | None
    own_upper_ug: int | None
    row: Row | None
    laid: tuple[Row, ...] = ()

    @property
    def as_run(self) -> bool:
        """Whether the scenario is the run itself."""
        return self.row is not None and self.row["line"] == AS_RUN

    @property
    def tokens(self) -> int:
        """Tokens of the scenario."""
        return self.row["tokens"] if self.row else 0


def _known(rows: Sequence[Row], joules: str, grams: str) -> int | None:
    """Sum grams; None where joules have no price."""
    if any(row[joules] and row["g_milli_per_kwh"] is None for row in rows):
        return None
    return sum(row[grams] or 0 for row in rows)


def _both(one: int | None, other: int | None) -> int | None:
    """Add two figures; None where one is not known."""
    return None if one is None or other is None else one + other


def beside(actual: list[Row], scenario: list[Row], unclaimed: list[Row]) -> list[Slot]:
    """Put both in time order, slot by slot; what nobody was charged for may be the run's."""
    found = []
    for rows in _together([(actual, 0), (scenario, 1), (unclaimed, 2)]):
        own, other, beyond = ([row for row, part in rows if part == number] for number in range(3))
        upper_ug = _known(own, "upper_mj", "upper_ug")
        for row in beyond:
            upper_ug = _both(upper_ug, row["carbon_ug"])
        found.append(
            Slot(
                own_ug=_known(own, "energy_mj", "carbon_ug"),
                own_upper_ug=upper_ug,
                row=_one(other) if other else None,
                laid=tuple(row for row in own if SPREAD in row["energy_quality"]),
            )
        )
    return _bounded(found)


def _bounded(slots: Sequence[Slot]) -> list[Slot]:
    """Bound what was laid over slots by time: neighbours with such joules are together."""
    found: list[Slot] = []
    together: list[Slot] = []
    for slot in [*slots, Slot(0, 0, None)]:
        if any(row["energy_mj"] for row in slot.laid):
            together.append(slot)
        else:
            found += [*_all_or_none(together), slot]
            together = []
    return found[:-1]


def _all_or_none(slots: Sequence[Slot]) -> list[Slot]:
    """Say that the run may have drawn all of what was laid in the slots that do not cancel."""
    others = [slot for slot in slots if not slot.as_run]
    if not others:
        return list(slots)
    energy_mj = sum(row["energy_mj"] for slot in slots for row in slot.laid)
    prices = [
        grams_ug(energy_mj, row["g_milli_per_kwh"] or 0, row["pue_milli"])
        for slot in others
        for row in slot.laid
    ]
    least_ug = min(prices) if len(others) == len(slots) else 0
    found = []
    for slot in slots:
        own_ug = 0 if slot.as_run else -sum(row["carbon_ug"] or 0 for row in slot.laid)
        own_upper_ug = max(prices) if slot.as_run else 0
        if slot is others[0]:
            own_ug, own_upper_ug = own_ug + least_ug, max(prices) - least_ug
        found.append(
            replace(
                slot,
                own_ug=_both(slot.own_ug, own_ug),
                own_upper_ug=_both(slot.own_upper_ug, own_upper_ug),
            )
        )
    return found


def _together(parts: Sequence[tuple[list[Row], int]]) -> list[list[tuple[Row, int]]]:
    """Put rows in time order, those of slots that lie upon each other together."""
    found: list[list[tuple[Row, int]]] = []
    until = ""
    every = [(row, part) for rows, part in parts for row in rows]
    for row, part in sorted(every, key=lambda each: (_start(each[0]), each[1])):
        if not found or _start(row) >= datetime.fromisoformat(until):
            found.append([])
            until = row["slot_end"]
        found[-1].append((row, part))
        until = max(until, row["slot_end"], key=datetime.fromisoformat)
    return found


def _one(rows: Sequence[Row]) -> Row:
    """Give one row for all that a scenario has of a time; of two kinds it can be no saving."""
    amounts = {
        name: None if any(row[name] is None for row in rows) else sum(row[name] for row in rows)
        for name in ("tokens", "carbon_ug", "upper_ug")
    }
    kinds = {row["line"] for row in rows}
    return {**rows[0], **amounts, "line": kinds.pop() if len(kinds) == 1 else SEVERAL}


def shares(slots: Sequence[Slot], tokens: int) -> list[Fraction] | None:
    """Say how much of each slot lies before the last moment at which `tokens` were trained.

    None: they never were.
    """
    level, last = 0, None
    for number, slot in enumerate([*slots, Slot(0, 0, None)]):
        if level <= tokens:
            last = (number, level)
        level += slot.tokens
    if level < tokens:
        return None
    if last is None:  # the run went back to before it was known here
        return [Fraction(0)] * len(slots)
    number, level = last
    counted = [Fraction(1)] * number + [Fraction(0)] * (len(slots) - number)
    if number < len(slots):
        counted[number] = Fraction(tokens - level, slots[number].tokens)
    return counted


@dataclass(frozen=True)
class Told:
    """What a scenario comes to; None where it cannot be told."""

    reference_ug: int | None = None
    saved_ug: int | None = None
    high_ug: int | None = None
    dark: bool = False


def compared(slots: Sequence[Slot], tokens: int) -> Told:
    """Compare a run with a scenario; shares are rounded against the saving."""
    counted = shares(slots, tokens)
    if counted is None or any(slot.row and slot.row["line"] == SEVERAL for slot in slots):
        return Told()
    low = high = reference = 0
    whole, dark = True, False
    for slot, share in zip(slots, counted, strict=True):
        row, left = slot.row, 1 - share if slot.as_run else Fraction(1)
        if share and row is not None:
            grams = slot.own_ug if slot.as_run else row["carbon_ug"]
            dark = dark or (slot.own_upper_ug if slot.as_run else row["upper_ug"]) != 0
            whole = whole and grams is not None
            reference += floor((grams or 0) * share)
        if share and row is not None and not slot.as_run:
            if row["line"] != "modelled" or row["carbon_ug"] is None:
                return Told()
            low += floor(row["carbon_ug"] * share)
            high += floor(row["carbon_ug"] * share) + ceil(row["upper_ug"] * share)
        if left:
            if slot.own_ug is None or slot.own_upper_ug is None:
                return Told()
            low -= ceil(slot.own_ug * left) + ceil(slot.own_upper_ug * left)
            high -= ceil(slot.own_ug * left)
    return Told(reference if whole else None, low, high, dark)


def check_joules(audit: Row) -> list[str]:
    """Compare the actual rows with the energy they were computed from."""
    energy, actual = ({_place(row): row for row in audit[part]} for part in ("energy", "actual"))
    wrong = [
        f"actual row {slot} {gpu}: has no energy row" for gpu, slot, _ in actual.keys() - energy
    ]
    if audit["unbooked_mj"] == 0:
        for place, row in energy.items():
            priced = actual.get(place)
            for field in ("energy_mj", "upper_mj"):
                there = priced[field] if priced else None
                if row[field] != there and (priced or row[field]):
                    where = f"energy row {place[1]} {place[0]}"
                    wrong.append(f"{where}: {row[field]} as {field}, the actual row has {there}")
    return wrong


def check_dark(audit: Row) -> list[str]:
    """Find time that nobody measured and nobody bounded."""
    return [
        f"energy row {row['slot_start']} {row['gpu_uuid']}: is unobserved and has no upper estimate"
        for row in audit["energy"]
        if row["unobserved_ms"] and not row["upper_mj"]
    ]


def check_gaps(audit: Row) -> list[str]:
    """Find slots that a scenario leaves out between its first and its last."""
    wrong = []
    for part, name in SCENARIOS.items():
        ends = sorted((_start(row), row["slot_end"]) for row in audit[part])
        wrong += [
            f"{name}: nothing between {end} and {start.isoformat()}"
            for (_, end), (start, _) in pairwise(ends)
            if datetime.fromisoformat(end) != start
        ]
    return wrong


def recomputed(audit: Row) -> dict[str, int | None]:
    """Give every figure from the rows alone."""
    actual, tokens, unclaimed = audit["actual"], audit["tokens"], audit["unclaimed"]
    single = compared(beside(actual, audit["single"], unclaimed), tokens)
    signals = {row["signal"] for part in ("actual", *SCENARIOS) for row in audit[part] if _is(row)}
    several = len(signals) > 1
    untold = several or not _read(audit) or _mixes_hosts(audit)
    told = Told() if untold else compared(beside(actual, audit["reference"], unclaimed), tokens)
    better = None
    if audit["single"] and told.saved_ug is not None and not (told.dark or single.dark):
        both = (told.reference_ug, single.reference_ug)
        better = None if None in both else (both[0] or 0) - (both[1] or 0)
    pues = _pues(audit)
    if told.saved_ug is not None and len(pues) > 1:
        one, better = least([*(_told_at(audit, each) for each in pues), told]), None
        told = one if one.saved_ug != one.high_ug else told
    return {
        "actual_ug": None if several else sum(row["carbon_ug"] or 0 for row in actual),
        "reference_ug": told.reference_ug,
        "unobserved_ug": None if several else _unobserved(actual, unclaimed),
        "saved_ug": told.saved_ug,
        "saved_high_ug": told.high_ug,
        "better_point_ug": better,
        "carbon_aware_ug": None if better is None else (told.saved_ug or 0) - better,
        "unbooked_mj": sum(row["energy_mj"] or 0 for row in audit["energy"])
        - sum(row["energy_mj"] or 0 for row in actual),
    }


def _pues(audit: Row) -> list[int]:
    """Give every PUE that any grams have."""
    rows = [row for part in ("actual", *SCENARIOS, "unclaimed") for row in audit[part]]
    return sorted({row["pue_milli"] for row in rows if row["carbon_ug"] or row.get("upper_ug")})


def _told_at(audit: Row, pue_milli: int) -> Told:
    """Compare once more, as if one PUE had held all the time."""
    parts = (at_pue(audit[name], pue_milli) for name in ("actual", "reference", "unclaimed"))
    return compared(beside(*parts), audit["tokens"])


def at_pue(rows: list[Row], pue_milli: int) -> list[Row]:
    """Give rows with the grams of another PUE: those of a slot and a PUE added up, then scaled."""
    together: dict[tuple[str, str, int, bool, bool], list[Row]] = defaultdict(list)
    for row in rows:
        bare = row["carbon_ug"] is None and row.get("upper_ug") is None
        spread = SPREAD in row.get("energy_quality", "")
        place = (row["slot_start"], row["slot_end"])
        together[*place, row["pue_milli"], bare, spread].append(row)
    found: list[Row] = []
    for (_, _, of_milli, bare, _), group in together.items():
        names: list[str] = [name for name in ("carbon_ug", "upper_ug") if name in group[0]]
        sums = {name: sum(row[name] or 0 for row in group) for name in names}
        scaled: dict[str, int] = {
            name: floor(Fraction(grams * pue_milli, of_milli) + Fraction(1, 2))
            for name, grams in sums.items()
        }
        if "energy_mj" in group[0]:
            scaled["energy_mj"] = sum(row["energy_mj"] or 0 for row in group)
        found += group if bare else [group[0] | scaled | {"pue_milli": pue_milli}]
    return found


def least(every: Sequence[Told]) -> Told:
    """Give the band over all of them, with the baseline of its lower end."""
    low = min(every, key=lambda told: told.saved_ug or 0)
    high = max(told.high_ug or 0 for told in every)
    return Told(low.reference_ug, low.saved_ug, high, low.dark)


def _unobserved(actual: list[Row], unclaimed: list[Row]) -> int | None:
    """Sum the most that was emitted beyond what the run is charged for."""
    most = _known(actual, "upper_mj", "upper_ug")
    for row in unclaimed:
        most = _both(most, row["carbon_ug"])
    return most


def _read(audit: Row) -> list[Row]:
    """Give the rows of joules that were read."""
    return [row for row in audit["energy"] if row["energy_mj"] is not None]


def _mixes_hosts(audit: Row) -> bool:
    """Whether processors and memory were read in some slots and not in others."""
    slots: dict[str, bool] = {}
    for row in _read(audit):
        host = row["gpu_uuid"].partition(":")[0] in HOSTS
        slots[row["slot_start"]] = slots.get(row["slot_start"], False) or host
    return len(set(slots.values())) > 1


def _is(row: Row) -> bool:
    """Whether a row has grams of its own."""
    return row["g_milli_per_kwh"] is not None and (row["carbon_ug"] or row["upper_ug"])


def differences(audit: Row) -> list[str]:
    """List everything that does not agree, in words."""
    if audit["summed_up"]:
        return ["its slots were summed up: nothing is left to recompute from"]
    wrong = check_rows("actual", audit["actual"])
    for part, name in SCENARIOS.items():
        wrong += check_rows(name, audit[part]) + check_scenario(name, audit[part])
    checks: tuple[Callable[[Row], list[str]], ...] = (check_joules, check_dark, check_gaps)
    wrong += [each for check in checks for each in check(audit)]
    for name, value in recomputed(audit).items():
        if audit[name] != value:
            wrong.append(f"{name}: the audit says {audit[name]}, the rows say {value}")
    if (audit["saved_ug"] is None) != bool(audit["unsettled"]):
        wrong.append(
            f"saved_ug: {audit['saved_ug']}, and the reason given is {audit['unsettled']!r}"
        )
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
        print(f"{name:16} {value}")
    for sentence in wrong:
        print(f"DIFFERS  {sentence}")
    rows = sum(len(audit[part]) for part in ("actual", *SCENARIOS))
    print("differs" if wrong else f"equal to the microgram over {rows} rows")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
