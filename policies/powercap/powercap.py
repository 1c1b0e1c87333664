"""An operator's power cap over many boards: which clock and limit each gets. Pure.

What counts of a board is an upper bound, never what it happens to draw: the limit it is given, or
at a locked clock the measured draw of that point with a margin. A board that does not obey counts
at what it may draw when nobody lowers it. Four steps, cheapest first, each only as far as needed:

    1. boards that train are limited to the draw of the point they are at      costs no tokens
    2. boards on which no run trains go down towards their floor               costs no tokens
    3. runs go to slower clocks of their own layout, least speed per watt first
    4. limits of boards that train go down towards their floor, all by the same share

A layout is never changed for a cap: that takes a boundary, and a cap is due now.

Invariant: the same facts give the same plan, whatever boards draw and hold now; wherever the
bounds can be brought under the cap they are; no board is limited below its floor. Runs that share
a cap meet one price, in shares of speed per watt.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wattmesh.policies.slowing import LEAST_W, ClockDescent, ClockLevel, Load, draw_w, level_draw_w
from wattmesh.reconfig.catalogue import OperatingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPowerLimits:
    """One GPU.

    Attributes:
        limit_w: what it may draw while nobody lowers it; None: nobody told.
        floor_w: the lowest limit that its actuator sets; None: it takes none.
        obeys: an obligation for it would be kept now.
    """

    gpu_uuid: str
    limit_w: float | None
    floor_w: float | None = None
    obeys: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardTarget:
    """What one board is to be held at; None: that lever is left alone."""

    clock_mhz: int | None = None
    cap_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capping:
    """How a cap is kept.

    Attributes:
        boards: by GPU; one that is not named needs nothing.
        bound_w: the most that all boards can draw once this is in force.
        lowest_w: the lowest bound that could be reached at all.
        points: where each run is held, by run; only runs whose boards all obey.
        room_w: by run, watts it may use with all others held where they are. `runs_w`: watts that
            all runs may use together.
        deaf: boards that do not obey. `untold`: boards of which not even the limit is known; each
            counts like the largest limit, or measured draw of a run's point, that there is.
        bound_known: False: no board's limit is known, so `bound_w` and `lowest_w` mean nothing.
        price_per_w: most that was paid, in shares of a run's speed per watt; 0: no run was slowed.
    """

    cap_w: float
    boards: Mapping[str, BoardTarget] = field(default_factory=dict)
    bound_w: float
    lowest_w: float
    points: Mapping[str, OperatingPoint] = field(default_factory=dict)
    room_w: Mapping[str, float] = field(default_factory=dict)
    runs_w: float = 0.0
    deaf: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    bound_known: bool = True
    price_per_w: float = 0.0

    @property
    def meets(self) -> bool:
        """Say whether the cap is known to be kept."""
        return self.bound_known and self.bound_w <= self.cap_w + LEAST_W


def cap(cap_w: float, boards: Iterable[GpuPowerLimits], loads: Sequence[Load]) -> Capping:
    """Keep the sum of what all boards can draw at or under `cap_w`, as far as that can be done.

    Args:
        cap_w: watts, above 0.
        boards: every board that counts.
        loads: runs that train; a board may belong to one of them.
    """
    site = _Site(boards, loads)
    if site.free_w <= cap_w:
        return site.capping(cap_w, {}, price_per_w=0.0)
    levels = dict.fromkeys((load.run for load in loads), 0)
    limits = site.limits(levels)
    site.squeeze(limits, site.idle, cap_w, levels)
    price_per_w = 0.0
    if site.bound_w(limits, levels) > cap_w + LEAST_W:
        levels, price_per_w = site.slow_down(levels, cap_w, limits)
        limits = site.limits(levels) | {gpu: limits[gpu] for gpu in site.idle}
    site.squeeze(limits, site.training, cap_w, levels)
    return site.capping(cap_w, limits, levels=levels, price_per_w=price_per_w)


class _Site:
    """All boards with the runs on them."""

    def __init__(self, boards: Iterable[GpuPowerLimits], loads: Sequence[Load]) -> None:
        """Sort boards into those that train and those that do not."""
        known = {board.gpu_uuid: board for board in boards}
        limits = [each.limit_w for each in known.values() if each.limit_w]
        drawn = [draw_w(level.point) or 0.0 for load in loads for level in load.levels]
        # What nobody told is not 0 W: no less than any board here is measured to draw.
        largest = max((*limits, *drawn), default=0.0)
        self.untold = tuple(sorted(gpu for gpu, each in known.items() if each.limit_w is None))
        self.bound_known = not self.untold or bool(limits)
        self.boards = known
        self.free = {gpu: each.limit_w or largest for gpu, each in known.items()}
        self.loads = {load.run: load for load in loads}
        self.run_of = {gpu: load.run for load in loads for gpu in load.gpus if gpu in known}
        self.training = tuple(sorted(self.run_of))
        self.idle = tuple(sorted(known.keys() - self.run_of.keys()))

    @property
    def free_w(self) -> float:
        """What all boards may draw while nobody lowers them."""
        return sum(self.free.values())

    def limits(self, levels: Mapping[str, int]) -> dict[str, float]:
        """Give every board the limit of its run's level, or of its own."""
        return {gpu: self._limit_w(gpu, levels) for gpu in self.boards}

    def _limit_w(self, gpu: str, levels: Mapping[str, int]) -> float:
        """Limit of one board: as low as its run's draw, and never below its floor."""
        board, free_w, draw = self.boards[gpu], self.free[gpu], self._draw_w(gpu, levels)
        if draw is None or board.floor_w is None:
            return free_w
        return min(free_w, max(board.floor_w, draw))

    def _level(self, gpu: str, levels: Mapping[str, int]) -> ClockLevel | None:
        """Level of the run on a board; None: none, or not known."""
        load = self.loads.get(self.run_of.get(gpu, ""))
        return load.levels[levels[load.run]] if load and load.levels else None

    def _draw_w(self, gpu: str, levels: Mapping[str, int]) -> float | None:
        """The most a board draws at its run's level; None when that is not known."""
        level = self._level(gpu, levels)
        return draw_w(level.point) if level else None

    def counted_w(self, gpu: str, limit_w: float, levels: Mapping[str, int]) -> float:
        """Upper bound of one board: its limit, or the draw at its clock where that is lower.

        Only a locked clock bounds: without one a board takes what its limit gives it.
        """
        if not self.boards[gpu].obeys:
            return self.free[gpu]
        level, draw = self._level(gpu, levels), self._draw_w(gpu, levels)
        if level is None or draw is None or level.point.clock_mhz is None:
            return limit_w
        return min(limit_w, draw)

    def bound_w(self, limits: Mapping[str, float], levels: Mapping[str, int]) -> float:
        """Upper bound of all boards."""
        return sum(self.counted_w(gpu, limit_w, levels) for gpu, limit_w in limits.items())

    def squeeze(
        self,
        limits: dict[str, float],
        gpus: Iterable[str],
        cap_w: float,
        levels: Mapping[str, int],
    ) -> None:
        """Take limits down towards their floors, all by the same share, as far as needed."""
        excess_w = self.bound_w(limits, levels) - cap_w
        room = {gpu: self._room_w(gpu, limits[gpu], levels) for gpu in gpus}
        whole_w = sum(room.values())
        if excess_w <= 0 or whole_w <= 0:
            return
        share = min(1.0, excess_w / whole_w)
        for gpu, room_w in room.items():
            if room_w > 0:
                floor_w = self.boards[gpu].floor_w or 0.0
                lower_w = self.counted_w(gpu, limits[gpu], levels) - share * room_w
                limits[gpu] = max(floor_w, lower_w)

    def _room_w(self, gpu: str, limit_w: float, levels: Mapping[str, int]) -> float:
        """How far a board's bound can still be lowered by its limit."""
        board = self.boards[gpu]
        if not board.obeys or board.floor_w is None:
            return 0.0
        return max(0.0, self.counted_w(gpu, limit_w, levels) - board.floor_w)

    def slow_down(
        self, levels: Mapping[str, int], cap_w: float, limits: Mapping[str, float]
    ) -> tuple[dict[str, int], float]:
        """Take runs to slower clocks until the cap is kept or nothing slower is left.

        The step that costs the least speed for a watt comes first; runs that would be late come
        last. What a coarse step made superfluous is given back afterwards, dearest first.
        """
        own = {gpu for load in self.loads.values() for gpu in load.gpus}
        others = (self.counted_w(gpu, limits[gpu], levels) for gpu in limits if gpu not in own)
        way = ClockDescent(
            self.loads, {run: self._bounds(load) for run, load in self.loads.items()}
        )
        way.start(levels, sum(others))
        way.down(cap_w)
        way.back(cap_w)
        return way.chosen, way.price_per_w

    def _bounds(self, load: Load) -> list[float]:
        """Bound of all boards of one run, by its level."""
        mine = [gpu for gpu in load.gpus if gpu in self.boards]
        found = []
        for level in range(max(1, len(load.levels))):
            at = {load.run: level}
            found.append(sum(self.counted_w(gpu, self._limit_w(gpu, at), at) for gpu in mine))
        return found

    def capping(
        self,
        cap_w: float,
        limits: Mapping[str, float],
        *,
        levels: Mapping[str, int] | None = None,
        price_per_w: float,
    ) -> Capping:
        """Put the plan together; without levels no board is lowered."""
        deaf = tuple(sorted(gpu for gpu, each in self.boards.items() if not each.obeys))
        if levels is None:
            bound_w, counted = self.free_w, self.free
        else:
            counted = {gpu: self.counted_w(gpu, limits[gpu], levels) for gpu in limits}
            bound_w = sum(counted.values())
        return Capping(
            cap_w=cap_w,
            boards=self._lowered(limits, levels) if levels is not None else {},
            bound_w=bound_w,
            lowest_w=self._lowest_w(),
            points=self._points(levels) if levels is not None else {},
            room_w={
                run: cap_w - bound_w + sum(counted.get(gpu, 0.0) for gpu in load.gpus)
                for run, load in self.loads.items()
            },
            runs_w=cap_w - bound_w + sum(counted[gpu] for gpu in self.training),
            deaf=deaf,
            untold=self.untold,
            bound_known=self.bound_known,
            price_per_w=price_per_w,
        )

    def _lowered(
        self, limits: Mapping[str, float], levels: Mapping[str, int]
    ) -> dict[str, BoardTarget]:
        """Give what each board is to be held at; those that do not obey are told as well."""
        found: dict[str, BoardTarget] = {}
        for gpu, limit_w in limits.items():
            load = self.loads.get(self.run_of.get(gpu, ""))
            slowed = load is not None and levels[load.run] > 0
            level = self._level(gpu, levels)
            clock = (
                level.point.clock_mhz if level and (slowed or self._relied(gpu, levels)) else None
            )
            limit = limit_w if limit_w < self.free[gpu] - LEAST_W else None
            if clock is not None or limit is not None:
                found[gpu] = BoardTarget(clock_mhz=clock, cap_w=limit)
        return found

    def _relied(self, gpu: str, levels: Mapping[str, int]) -> bool:
        """Whether a board's bound rests on its clock, because its floor lies above the draw."""
        draw, floor_w = self._draw_w(gpu, levels), self.boards[gpu].floor_w
        return draw is not None and (floor_w is None or draw < floor_w)

    def _points(self, levels: Mapping[str, int]) -> dict[str, OperatingPoint]:
        return {
            run: load.levels[levels[run]].point
            for run, load in self.loads.items()
            if load.levels
            and all(gpu in self.boards and self.boards[gpu].obeys for gpu in load.gpus)
        }

    def _lowest_w(self) -> float:
        """The lowest bound there is: the thriftiest clock of each run, each limit at its floor."""
        levels = {
            run: min(
                range(len(load.levels)), key=lambda at: level_draw_w(load.levels[at]), default=0
            )
            for run, load in self.loads.items()
        }
        limits = {
            gpu: min(self.free[gpu], each.floor_w or self.free[gpu])
            for gpu, each in self.boards.items()
        }
        return self.bound_w(limits, levels)
