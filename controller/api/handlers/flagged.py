"""Write journal rows as JSON, with the flags and the basis of their joules and grams. Pure.

Invariant: every object with a joule, a watt or a gram also has `flags`; grams that a decision or a
switch expects name their baseline, signal and boundary as well.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from wattmesh.controller import marks
from wattmesh.controller.accounting.audit import Audit
from wattmesh.controller.journal.decisions import DecisionRow
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.controller.planner.view import expected_boundary
from wattmesh.controller.views import as_json
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.telemetry.carbon import signal_quality
from wattmesh.telemetry.energy.ledger import EnergyRow
from wattmesh.telemetry.readings import Quality, flags_of

SLOP = timedelta(seconds=60)
"""A switch belongs to the decision in force when its intent was written, within this tolerance."""


def decision_json(row: DecisionRow, run: RunRow | None, signal: str) -> dict[str, Any]:
    """Write one decision with its numbers beside the other keys.

    Args:
        row: the decision.
        run: the run it decided on; None: the journal has lost it.
        signal: of the forecast that it used; "" where none is known.
    """
    plain: dict[str, Any] = as_json(row)
    return {**plain.pop("numbers"), **plain, **_expected(row.reason, run, signal)}


def switch_json(
    row: SwitchRow, run: RunRow, decisions: Sequence[DecisionRow], signals: Mapping[int, str]
) -> dict[str, Any]:
    """Write one switch; its signal is that of the decision in force when it was ordered."""
    stood = (each for each in decisions if each.first_at <= row.created_at + SLOP)
    signal = next((signals.get(each.forecast or 0, "") for each in stood), "")
    return {**as_json(row), **_expected(row.reason, run, signal)}


def _expected(reason: str, run: RunRow | None, signal: str) -> dict[str, Any]:
    """Give the flags of expected grams, and their baseline, signal and boundary."""
    flags = marks.expected_flags(run.catalogue if run else None, signal)
    return {
        "reason": marks.sentence(reason, flags),
        "baseline": run.baseline if run else "",
        "signal": signal,
        "boundary": expected_boundary(run.catalogue if run else None),
        "flags": list(flags),
    }


def catalogue_json(catalogue: Catalogue | None) -> dict[str, Any] | None:
    """Write a catalogue; numbers that are declared, or the same for all points, are estimates."""
    if catalogue is None:
        return None
    plain: dict[str, Any] = as_json(catalogue)
    declared = flags_of(str(Quality.ESTIMATED), *_simulated(catalogue))
    switch = plain["switch"]
    source = Quality.SIMULATED if catalogue.switch.source == "simulated" else Quality.ESTIMATED
    flags = () if catalogue.switch.source == "measured" else flags_of(str(source))
    flags = flags_of(*flags, *_simulated(catalogue))
    return {
        **plain,
        "flags": list(declared),
        "switch": {
            **switch,
            "flags": list(flags),
            "pairs": [{**each, "flags": list(flags)} for each in switch["pairs"]],
        },
        "points": [
            {**each, "flags": list(marks.point_flags(catalogue, point))}
            for each, point in zip(plain["points"], catalogue.points, strict=True)
        ],
    }


def _simulated(catalogue: Catalogue) -> tuple[str, ...]:
    return (str(Quality.SIMULATED),) if "power_w" in catalogue.simulated else ()


def audit_json(audit: Audit) -> dict[str, Any]:
    """Write an audit, each row with its flags."""
    plain: dict[str, Any] = as_json(audit)
    for name in ("actual", "reference", "single", "energy"):
        rows: Sequence[EmissionRow | EnergyRow] = getattr(audit, name)
        plain[name] = [{**as_json(row), "flags": list(row_flags(row))} for row in rows]
    return plain


def row_flags(row: EmissionRow | EnergyRow) -> tuple[str, ...]:
    """Give the flags of a ledger row's joules and grams."""
    if isinstance(row, EnergyRow):
        return flags_of(row.quality)
    return flags_of(row.quality, row.energy_quality, signal_quality(row.signal))
