"""Which points of a catalogue were proven too long ago, or on something else. Pure.

Invariant: what is not known is never stale: a point without a date or a fingerprint, and a part of
a fingerprint that one side does not know, stay as they are.
"""

from collections.abc import Mapping
from datetime import datetime

from wattmesh.reconfig.catalogue import Catalogue, Evidence, OperatingPoint
from wattmesh.reconfig.fingerprint import Fingerprint

DAY_S = 86_400.0


def stale(point: OperatingPoint, now: datetime, age_days: float, ran: Fingerprint) -> str:
    """Say why the proof of a point no longer holds, as a clause; "" while it does.

    Args:
        point: of a catalogue.
        now: an aware time.
        age_days: for how long a proof holds; 0: forever.
        ran: what the run computes with now, as far as it is known.
    """
    if point.evidence is not Evidence.VALIDATED:
        return ""
    if point.fingerprint is not None and (others := point.fingerprint.differences(ran)):
        return f"{point.id} is stale: it was proven with {'; '.join(others)}"
    if point.validated_at is None or age_days <= 0:
        return ""
    old_days = (now - point.validated_at).total_seconds() / DAY_S
    if old_days <= age_days:
        return ""
    return (
        f"{point.id} is stale: it was proven {old_days:.0f} days ago, and proofs hold for "
        f"{age_days:g} (policy.proof_days)"
    )


def stale_points(
    catalogue: Catalogue | None, now: datetime, age_days: float, ran: Fingerprint
) -> Mapping[str, str]:
    """Return the clause of every stale point, by id."""
    points = catalogue.points if catalogue is not None else ()
    return {each.id: why for each in points if (why := stale(each, now, age_days, ran))}
