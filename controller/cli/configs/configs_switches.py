"""Reads the switches of a run from the daemon's answer, as far as they tell of its next ones. Pure.

Invariant: what a launch before the present one measured, on machines that may be others, is no
record.
"""

from collections.abc import Mapping
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.policies.switch_time import SwitchKind, SwitchRecord
from wattmesh.reconfig.catalogue import PAUSED, Catalogue
from wattmesh.reconfig.switch import AT_PACE, SwitchState
from wattmesh.reconfig.switch_spend import seconds_in, spend_of
from wattmesh.reconfig.wire.messages import SwitchMode

MOST_SWITCHES = 50
"""Switches of a run that count, as in the daemon's journal."""


def records_of(answer: Mapping[str, Any], catalogue: Catalogue) -> tuple[SwitchRecord, ...]:
    """Give the confirmed switches of a run's present launch, newest first.

    Args:
        answer: of `GET /v1/runs/{run}`.
        catalogue: that the file holds.

    Raises:
        InputInvalid: the run began with another catalogue.
    """
    run = answer["run"]
    began_with = (answer.get("catalogue") or {}).get("digest")
    if began_with != catalogue.digest:
        raise InputInvalid(
            f"{run['name']} did not begin with this catalogue (sha256 "
            f"{str(began_with or 'of none')[:12]}, the file has {catalogue.digest[:12]}); its "
            "points may be others, so name the file that it began with, or leave out --run"
        )
    return tuple(
        found
        for each in answer["switches"]
        if each["attempt"] == run["attempt"] and (found := _record(each)) is not None
    )


def _record(row: Mapping[str, Any]) -> SwitchRecord | None:
    evidence, order = row["evidence"], row["order"]
    total_s = seconds_in(evidence, "total_s")
    if row["state"] != SwitchState.CONFIRMED or order.get("placement") or not total_s:
        return None
    in_place = order["mode"] == SwitchMode.IN_PLACE
    return SwitchRecord(
        origin=row["from_point"],
        target=row["to_point"],
        kind=SwitchKind.IN_PLACE if in_place else SwitchKind.RESTART,
        told_s=total_s,
        at_pace_s=total_s if row["to_point"] == PAUSED else seconds_in(evidence, AT_PACE),
        spend=spend_of(evidence, row["from_point"], row["to_point"]),
    )
