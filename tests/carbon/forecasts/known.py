"""Which values claim to be known before anybody can have known them."""

from collections.abc import Callable, Iterable
from datetime import datetime

from wattmesh.telemetry.exogenous import ExogenousPoint


def too_early(
    points: Iterable[ExogenousPoint], told_at: Callable[[datetime], datetime]
) -> list[ExogenousPoint]:
    """Give the points that are issued before the server told them.

    Args:
        points: what a provider made of the server's answers.
        told_at: from when the server tells of the hour that begins at a moment.
    """
    return [point for point in points if point.issued_at < told_at(point.start)]
