"""Which points of a catalogue were proven too long ago, on or as something else. Pure.

Invariant: what is not known is never stale: a point without a date or a fingerprint, and a part of
a fingerprint that one side does not know, stay as they are.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from wattmesh.reconfig.catalogue import Catalogue, Evidence, OperatingPoint
from wattmesh.reconfig.fingerprint import Fingerprint

CLOCKS_APART_DAYS = 1.0
"""A proof may be dated later than its run by as much, by another machine's clock."""


def stale(
    point: OperatingPoint,
    at: datetime,
    age_days: float,
    ran: Fingerprint,
    *,
    when: str = "ago",
) -> str:
    """Say why the proof of a point no longer holds, as a clause; "" while it does.

    Args:
        point: of a catalogue.
        at: when the proof is relied on, an aware time.
        age_days: for how long a proof holds; 0: forever.
        ran: what the run computes with now, as far as it is known.
        when: what `at` is, behind a number of days.
    """
    if point.evidence is not Evidence.VALIDATED:
        return ""
    if point.proven_as and point.proven_as != point.claim:
        return (
            f"{point.id} is stale: its layout, GPUs, clock, class or tolerance was edited after it "
            "was proven"
        )
    if point.fingerprint is not None and (others := point.fingerprint.differences(ran)):
        return f"{point.id} is stale: it was proven with {'; '.join(others)}"
    return _wrong_age(point, at, age_days, when) if point.validated_at is not None else ""


def _wrong_age(point: OperatingPoint, at: datetime, age_days: float, when: str) -> str:
    assert point.validated_at is not None
    old_days = (at - point.validated_at) / timedelta(days=1)
    if old_days < -CLOCKS_APART_DAYS:
        return (
            f"{point.id} is stale: its proof is dated {point.validated_at:%Y-%m-%d}, in the future "
            "of what relies on it, so that its age is not known"
        )
    if age_days <= 0 or old_days <= age_days:
        return ""
    return (
        f"{point.id} is stale: it was proven {old_days:.0f} days {when}, and proofs hold for "
        f"{age_days:g} (policy.proof_days)"
    )


def stale_points(
    catalogue: Catalogue | None, began: datetime, age_days: float, ran: Fingerprint
) -> Mapping[str, str]:
    """Return the clause of every stale point of a run, by id.

    The age counts from when the run `began`, for its catalogue is frozen then and cannot be proven
    anew: a run at a slow point keeps its way back to a fast one, which its deadline counts on.
    """
    points = catalogue.points if catalogue is not None else ()
    when = "before the run began"
    found = {each.id: stale(each, began, age_days, ran, when=when) for each in points}
    return {point: why for point, why in found.items() if why}
