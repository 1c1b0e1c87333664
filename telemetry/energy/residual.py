"""Power of a node beyond its metered parts: fans, network, disks, losses.

Invariant: never negative. A node meter that reads less than the sum of its parts is reported as a
trouble, and the residual is then unknown, not zero.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from wattmesh.telemetry.readings import Component, PowerReading

SLACK_SHARE = 0.05
"""Node meters are accurate to some percent: a reading this much below the sum of the parts is
noise, and the residual is then 0."""

WINDOW_S, SETTLED_S = 150.0, 120.0
"""Means are over so long, and told once so much of it was seen. A meter averages over 1 to 60 s,
and its controller is asked every ten: it shows a step of the load up to a minute late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One node at one moment.

    Attributes:
        power_w: what the node's meters read beyond its parts; None when it is not known.
        trouble: why it is not known; "" when it is, when it is too early, or when there is no node
            meter.
    """

    power_w: float | None = None
    trouble: str = ""


class NodeBalance:
    """A node's meters beside its parts, as means over the same two minutes."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._seen: deque[tuple[float, float | None, float | None]] = deque()

    def observe(self, readings: Iterable[PowerReading], missing: Collection[str] = ()) -> None:
        """Take what was read in one step; without a node meter in it, everything is forgotten.

        Args:
            readings: of the node's meters and its parts.
            missing: parts that did not answer: what they draw is in the meter, and not known.
        """
        held = list(readings)
        meters = [each.power_w for each in held if each.component is Component.NODE]
        if not meters:
            self._seen.clear()
            return
        parts = [each.power_w for each in held if each.component is not Component.NODE]
        at_s = max(each.monotonic_s for each in held)
        parts_w = None if missing or not parts else _sum(parts)
        self._seen.append((at_s, _sum(meters), parts_w))
        while at_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    @property
    def residual(self) -> Residual:
        """What the node draws beyond its parts, in the mean of the time that was seen."""
        if not self._seen or self._seen[-1][0] - self._seen[0][0] < SETTLED_S:
            return Residual()
        known = [
            (node_w, parts_w)
            for _, node_w, parts_w in self._seen
            if node_w is not None and parts_w is not None
        ]
        # What is not read half of the time has no mean.
        if 2 * len(known) < len(self._seen):
            return Residual(trouble="a meter of the node or of one of its parts gives no power")
        node_w = sum(each for each, _ in known) / len(known)
        parts_w = sum(each for _, each in known) / len(known)
        if node_w - parts_w < -SLACK_SHARE * parts_w:
            return Residual(
                trouble=(
                    f"the node's meter reads {node_w:.0f} W, its parts {parts_w:.0f} W together: "
                    "it does not cover all of them, or one is metered twice; check which power "
                    "supplies it measures"
                ),
            )
        return Residual(power_w=max(0.0, node_w - parts_w))


def _sum(powers: list[float | None]) -> float | None:
    """Sum; None when one value is not known."""
    known = [each for each in powers if each is not None]
    return sum(known) if len(known) == len(powers) else None
