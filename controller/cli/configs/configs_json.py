"""The keys of `wattmesh configs list --json` and `configs show --json` (docs/catalogue.md). Pure.

Invariant: keys are only ever added; what is not known, or not stated, is null and never 0.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from wattmesh.controller.cli.configs.configs_stall import stall_sentence
from wattmesh.controller.cli.configs.configs_ways import Way, ways
from wattmesh.policies.break_even import BreakEven, break_evens, embodied_sentence, hull_sentence
from wattmesh.policies.switch_time import Stall, SwitchRecord
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint, PairCost, SwitchSpend


def catalogue_json(catalogue: Catalogue) -> dict[str, Any]:
    """Give the keys of `configs list`."""
    return {
        "job": catalogue.job,
        "digest": catalogue.digest,
        "tokens_total": catalogue.tokens_total,
        "reference": catalogue.reference,
        "release": catalogue.release.value,
        "power_scope": catalogue.power_scope.value,
        "idle_power_w_per_gpu": catalogue.idle_power_w_per_gpu,
        "embodied_g_per_gpu_hour": catalogue.embodied_g_per_gpu_hour or None,
        "simulated": list(catalogue.simulated),
        "switch": _switch_json(catalogue),
        "points": [point_json(each) for each in catalogue.points],
        "worth": [worth_json(each) for each in break_evens(catalogue)],
    }


def shown_json(
    catalogue: Catalogue, point: OperatingPoint, records: Sequence[SwitchRecord] = ()
) -> dict[str, Any]:
    """Give the keys of `configs show`; `records`: switches of a run of this catalogue."""
    (found,) = (each for each in break_evens(catalogue) if each.point.id == point.id)
    return {
        **point_json(point),
        "worth": worth_json(found),
        "switches": [
            {"other": each.other, "leaving": _way_json(each.leaving), "back": _way_json(each.back)}
            for each in ways(catalogue, point, records)
        ],
    }


def point_json(point: OperatingPoint) -> dict[str, Any]:
    """Give the keys of one point."""
    return {
        "id": point.id,
        "layout": point.layout.to_dict(),
        "layout_name": str(point.layout),
        "gpus": point.gpus,
        "clock_mhz": point.clock_mhz,
        "tokens_per_s": point.tokens_per_s,
        "power_w": point.power_w,
        "j_per_token": point.j_per_token,
        "gpu_power_w": point.gpu_power_w,
        "host_power_w": point.host_power_w,
        "parked_power_w": point.parked_power_w,
        "spread": point.spread,
        "speed_spread": point.speed_spread,
        "samples": point.samples or None,
        "dominated_by": point.dominated_by or None,
        "memory_gib": point.memory_gib,
        "equivalence": point.equivalence.value,
        "evidence": point.evidence.value,
        "sources": dict(point.sources),
        "probe": asdict(point.probe) if point.probe else None,
        "validated_at": point.validated_at.isoformat() if point.validated_at else None,
        "validated_by": point.validated_by or None,
        "tolerance": point.tolerance,
        "fingerprint": point.fingerprint.to_dict() if point.fingerprint else None,
    }


def worth_json(found: BreakEven) -> dict[str, Any]:
    """Give the keys of when one point is worth running."""
    vertex, even = found.vertex, found.slowing_down
    return {
        "point": found.point.id,
        "useful": vertex is not None,
        "sentence": hull_sentence(found),
        "charged_w": vertex.power_w if vertex else None,
        "marginal_j_per_token": vertex.marginal_j_per_token if vertex else None,
        "slower": found.slower or None,
        "ratio": found.ratio,
        "ratio_in_all": found.in_all,
        "break_even": even
        and {
            "faster": even.faster,
            "g_per_kwh": even.g_per_kwh,
            "sentence": embodied_sentence(found),
        },
    }


def _switch_json(catalogue: Catalogue) -> dict[str, Any]:
    switch = catalogue.switch
    return {
        "layout_s": switch.layout_s,
        "layout_energy_j": switch.layout_energy_j,
        "clock_s": switch.clock_s,
        "source": switch.source,
        "reacquire_s": switch.reacquire_s,
        "pairs": [_between_json(each) for each in switch.pairs],
        "spent": [_between_json(each) for each in switch.spends],
    }


def _between_json(switch: PairCost | SwitchSpend) -> dict[str, Any]:
    found = asdict(switch)
    return {"from": found.pop("origin"), "to": found.pop("target"), **found}


def _way_json(way: Way | None) -> dict[str, Any] | None:
    """Give what one switch takes; None where it must not be made."""
    if way is None:
        return None
    return {
        "seconds": way.seconds,
        "energy_j": way.energy_j,
        "basis": way.basis.value,
        "energy_estimated": way.energy_estimated,
        "stall": _stall_json(way.stall),
    }


def _stall_json(stall: Stall) -> dict[str, Any]:
    """Give how long a switch keeps a run from training at its pace, and how that is known."""
    found = stall.predicted
    return {
        "seconds": stall.seconds,
        "low_s": stall.low_s,
        "high_s": stall.high_s,
        "basis": stall.basis.value,
        "times": stall.times or None,
        "of": stall.source or None,
        "state_bytes": stall.state_bytes or None,
        "phases": {f"{name}_s": seconds for name, seconds in found.phases} if found else None,
        "sentence": stall_sentence(stall),
    }
