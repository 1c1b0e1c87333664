"""The line that tells a measured point. Pure."""

from wattmesh import quantities
from wattmesh.controller.profile.job import Candidate
from wattmesh.controller.profile.results import MeasuredPoint
from wattmesh.telemetry.readings import Quality, flags_of


def power_source(quality: str) -> str:
    """Return the catalogue's word for watts of a meter's quality."""
    flags = flags_of(quality)
    if Quality.SIMULATED in flags:
        return "simulated"
    return "assumed" if quality == Quality.STATIC else "measured"


def point_line(at: Candidate, point: MeasuredPoint, precision: float) -> str:
    """Say in one line what was measured of a point; `precision`: the share that was wanted."""
    words = [
        f"{at.id} ({at.layout})",
        f"{point.tokens_per_s:,.4g} tokens/s ±{point.speed_share:.1%}",
        quantities.watts(point.power_w),
        f"{point.j_per_token:.4g} J/token ±{point.share:.1%}",
    ]
    if point.memory_gib is not None:
        words.append(f"{point.memory_gib:g} GiB")
    words.append(f"{point.samples} intervals in {quantities.duration(point.seconds)}")
    if point.dominated_by:
        words.append(f"cut short: {point.dominated_by} is faster and takes fewer joules")
    elif not point.settled:
        words.append("not settled when its time was over")
    elif point.share > precision:
        words.append(f"±{precision:.1%} was not reached in its time")
    sources = {point.speed_source, point.power_source} - {"measured"}
    if sources:
        words.append(", ".join(sorted(sources)))
    return "  ".join(words)
