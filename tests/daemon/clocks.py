"""A clock that tests step by hand: monotonic and wall time move apart only when told to."""

from datetime import UTC, datetime, timedelta

from wattmesh.controller.process.loops import Clock

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)


class SteppedClock:
    """Both clocks of the daemon, standing still until moved.

    Attributes:
        synchronised: what the kernel says of the wall clock. `boot`: which boot it is.
    """

    def __init__(self) -> None:
        """Begin at noon, 1000 s after boot."""
        self.monotonic_s = 1000.0
        self.wall = T0
        self.synchronised: bool | None = True
        self.boot = "boot-1"

    @property
    def clock(self) -> Clock:
        """The clock that parts of the daemon take."""
        return Clock(
            monotonic=lambda: self.monotonic_s,
            now=lambda: self.wall,
            synchronised=lambda: self.synchronised,
            boot=lambda: self.boot,
        )

    def pass_s(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.monotonic_s += seconds
        self.wall += timedelta(seconds=seconds)

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock alone, as an administrator or a time service does."""
        self.wall += timedelta(seconds=seconds)
