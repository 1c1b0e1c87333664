"""The price rule's view from where one run is: hull, price, bound, and comparisons at the price.

Invariant: the solution leaves the guard's reserve free and counts on the guard's speeds, so the
guard can allow what it asks for; `bound_g` counts on neither, so that it is a bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.guard import Guard
from wattmesh.policies.horizon import Horizon, between, mean_g_per_kwh
from wattmesh.policies.hull import Hull, Vertex, lower_hull
from wattmesh.policies.rules.gate import SpeedPower, SwitchEstimate, better_g_per_s, flip_g_per_kwh
from wattmesh.policies.rules.price import PriceSolution, fill
from wattmesh.policies.run_context import RunContext
from wattmesh.policies.shared_grid import SharedSteps
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the price rule knows of one run.

    Attributes:
        running: slots until the work ends in the solution.
        switches: by the id of each point of the hull, what going there takes.
        bound_g: least grams still to come, at the catalogue's speeds and with all the time there
            is; None when even the fastest point cannot do it.
        shared: what other fills over these slots have worked out.
    """

    current: OperatingPoint
    here: SpeedPower
    hull: Hull
    horizon: Horizon
    solution: PriceSolution
    running: tuple[IntensitySlot, ...]
    bound_g: float | None
    price_mu: float
    shared: SharedSteps
    switches: Mapping[str, SwitchEstimate]

    def cost(self, target: OperatingPoint) -> SwitchEstimate:
        """Give what going to `target` takes: a switch, or only another clock."""
        return self.switches[target.id]

    @property
    def now_g_per_kwh(self) -> float:
        """Intensity now."""
        return self.horizon.slots[0].g_per_kwh

    def better(self, g_per_kwh: float, vertex: Vertex) -> float:
        """Grams saved per second at `vertex` against staying, at the solution's price."""
        return better_g_per_s(g_per_kwh, self.solution.mu_g_per_token, self.here, place(vertex))

    def flip(self, vertex: Vertex) -> float | None:
        """Intensity at which `vertex` and the current point are worth the same."""
        return flip_g_per_kwh(self.solution.mu_g_per_token, self.here, place(vertex))

    def better_when_flat(self, vertex: Vertex) -> bool:
        """Say whether `vertex` were better than staying if the grid stood at its mean."""
        slots = self.solution.slots
        mean = mean_g_per_kwh(slots)
        flat = fill(
            self.hull,
            (IntensitySlot(start=slots[0].start, end=slots[-1].end, g_per_kwh=mean),),
            self.solution.tokens,
        )
        if flat is None:
            return False
        return better_g_per_s(mean, flat.mu_g_per_token, self.here, place(vertex)) > 0


def place(vertex: Vertex) -> SpeedPower:
    """Speed and power of a vertex."""
    return SpeedPower(tokens_per_s=vertex.tokens_per_s, power_w=vertex.power_w)


def look_ahead(
    context: RunContext, catalogue: Catalogue, current: OperatingPoint, guard: Guard, hull: Hull
) -> Outlook | None:
    """Plan from now to the deadline; None when there is no room for anything but the fastest."""
    held = context.gpus_held
    end = context.seen.now + timedelta(seconds=guard.time_left_s)
    horizon, shared = context.grid.to_end(end), context.grid.steps
    reserve = timedelta(seconds=guard.reserve_s(hull.vertices[0].point) + guard.capped_s)
    solution = fill(
        hull,
        between(horizon.slots, context.seen.now, end - reserve),
        guard.tokens_left / guard.counted_on,
        shared,
    )
    if solution is None:
        return None
    known = {point.id for point in context.menu}
    every = context.menu if current.id in known else (*context.menu, current)
    bound = fill(lower_hull(catalogue, every, held), horizon.slots, guard.tokens_left, shared)
    here = SpeedPower(
        tokens_per_s=current.tokens_per_s, power_w=catalogue.held_power_w(current, held)
    )
    return Outlook(
        current=current,
        here=here,
        hull=hull,
        horizon=horizon,
        solution=solution,
        running=solution.running(),
        bound_g=bound.bound_g if bound else None,
        price_mu=solution.mu_g_per_token / guard.counted_on,
        shared=shared,
        switches={
            vertex.point.id: switch_estimate(context, catalogue, guard, here, vertex.point)
            for vertex in hull.vertices
        },
    )


def switch_estimate(
    context: RunContext,
    catalogue: Catalogue,
    guard: Guard,
    here: SpeedPower,
    target: OperatingPoint,
) -> SwitchEstimate:
    """Give what going to a point takes; one whose joules nobody measured is not free.

    As plans count it (`wattmesh.policies.planner.options`): the pair's own joules, else what was
    measured on the run, else the catalogue's, else as if the thirstier of both points trained on.
    """
    current, seconds = context.run.current, context.switch_s(target)
    there_w = catalogue.held_power_w(target, context.gpus_held)
    drawn_j = max(here.power_w, there_w) * seconds
    if current is None or target.layout == current.layout:
        return SwitchEstimate(seconds=seconds, energy_j=drawn_j)
    pair = catalogue.switch.between(current.id, target.id)
    measured_j = pair.energy_j if pair else context.run.switch_energy_j
    if measured_j is None:
        measured_j = catalogue.switch.layout_energy_j or drawn_j
    return SwitchEstimate(seconds=seconds, wait_s=guard.lag_s(current), energy_j=measured_j)
