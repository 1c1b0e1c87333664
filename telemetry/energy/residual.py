"""Power of a node beyond its metered parts: fans, network, disks, losses. Pure.

Invariant: never negative. A node meter that reads less than the sum of its parts is reported as a
trouble, and the residual is then unknown, not zero.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from wattmesh.telemetry.readings import Component, PowerReading

SLACK_SHARE = 0.05
"""Node meters average over 1 to 60 s and are accurate to some percent: a reading this much below
the sum of the parts is noise, and the residual is then 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One node at one moment.

    Attributes:
        power_w: what the node's meters read beyond its parts; None when it is not known.
        trouble: why it is not known; "" when it is, or when there is no node meter.
    """

    power_w: float | None = None
    trouble: str = ""


def residual(readings: Iterable[PowerReading]) -> Residual:
    """Compare a node's meters with its parts, all read at about the same time."""
    held = list(readings)
    meters = [each.power_w for each in held if each.component is Component.NODE]
    if not meters:
        return Residual()
    node_w = _sum(meters)
    parts_w = _sum([each.power_w for each in held if each.component is not Component.NODE])
    if node_w is None or parts_w is None:
        return Residual(trouble="a meter of the node or of one of its parts gave no power")
    rest_w = node_w - parts_w
    if rest_w < -SLACK_SHARE * parts_w:
        return Residual(
            trouble=(
                f"the node's meter reads {node_w:.0f} W, its parts {parts_w:.0f} W together: it "
                "does not cover all of them, or one is metered twice; check which power supplies "
                "it measures"
            ),
        )
    return Residual(power_w=max(0.0, rest_w))


def _sum(powers: list[float | None]) -> float | None:
    """Sum; None when one value is not known."""
    known = [each for each in powers if each is not None]
    return sum(known) if len(known) == len(powers) else None
