"""Whether an order may be taken at this boundary. Pure.

Invariant: an order is taken at most once, inside its step window, for this run and this attempt,
and never with an epoch older than one already seen of the same journal.
"""

from dataclasses import dataclass
from enum import StrEnum

from wattmesh.reconfig import placement as placements
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.placement import Placement
from wattmesh.reconfig.wire.messages import Order, SwitchMode


class OrderAnswer(StrEnum):
    """What to do with an order now."""

    TAKE = "take"
    WAIT = "wait"
    VOID = "void"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsStanding:
    """The experts of a job that lets them be placed anew: how many, and where they lie now."""

    layers: int
    experts: int
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderContext:
    """The facts about this run that decide whether an order may be taken.

    Attributes:
        launched: how many ranks the launcher started; orders name some of 0 .. launched - 1.
        relaunched: whether this job is launched again when it ends for a restart.
        epoch: the highest epoch seen of the order's journal.
        done: ids of switches already begun.
        asleep: whether the run sleeps, and its launcher asks for it.
        holds: whether the launcher can hold the next launch of a run that sleeps.
        resizes: whether the launcher can hold a next launch of another number of ranks.
        seekable: whether the data can be divided among another number of data parallel ranks.
        experts: of a job that lets them be placed anew; None of all others.
    """

    run: str
    attempt: int
    step: int
    layout: Layout
    ranks: tuple[int, ...]
    launched: int
    relaunched: bool
    epoch: int
    done: frozenset[str]
    seekable: bool = True
    holds: bool = False
    resizes: bool = False
    asleep: bool = False
    experts: ExpertsStanding | None = None


def judge(order: Order, standing: OrderContext) -> tuple[OrderAnswer, str]:
    """Decide on one order; the sentence says why it is not taken, "" if it is."""
    void = _void_reason(order, standing)
    if void:
        return OrderAnswer.VOID, void
    if standing.step < order.not_before_step:
        return OrderAnswer.WAIT, f"not before step {order.not_before_step}"
    return OrderAnswer.TAKE, ""


def _void_reason(order: Order, standing: OrderContext) -> str:
    """Say why this order can never be taken; "" when it can."""
    stays = order.layout == standing.layout and order.ranks == standing.ranks
    # In the same layout, what goes is the ranks that are parked.
    shrinks = order.mode is SwitchMode.RESIZE and len(order.ranks) != standing.launched
    suspends = order.mode is SwitchMode.SUSPEND
    places = _places(order, standing)
    checks = (
        (order.run != standing.run, f"it is for run {order.run}"),
        (
            order.attempt != standing.attempt,
            f"it is for attempt {order.attempt}, this is attempt {standing.attempt}",
        ),
        (
            order.epoch < standing.epoch,
            f"its epoch {order.epoch} is older than {standing.epoch}, already seen",
        ),
        (order.switch_id in standing.done, "it was carried out before"),
        (
            standing.step > order.valid_until_step,
            f"step {standing.step} is past its last step {order.valid_until_step}",
        ),
        ((ranks := _ranks_problem(order, _ranks_launched(order, standing))) != "", ranks),
        ((placing := _placement_problem(order, standing)) != "", placing),
        (
            order.mode is SwitchMode.RESTART and not standing.relaunched,
            "it asks for a restart, but nobody would launch this job again",
        ),
        (
            order.mode is SwitchMode.RESIZE and not standing.resizes,
            "it asks for a launch of another size, but this job's launcher holds none",
        ),
        (
            not standing.seekable and order.layout.data_parallel != standing.layout.data_parallel,
            f"its layout {order.layout} has data parallel degree {order.layout.data_parallel}, "
            f"the run has {standing.layout.data_parallel} and a loader that cannot seek by global "
            "sample",
        ),
        (
            suspends and not (standing.holds and order.wakes_at),
            "it asks the run to sleep, but nobody would wake it",
        ),
        (
            suspends and not stays,
            f"it asks for sleep in {order.layout}, and the run is in {standing.layout}",
        ),
        (
            (order.mode is SwitchMode.RESUME) is not standing.asleep,
            "it wakes a run that sleeps, and this one trains"
            if not standing.asleep
            else "it is for a run that trains, and this one sleeps",
        ),
        (
            stays and not (suspends or shrinks or standing.asleep or places),
            "the run is in that layout already",
        ),
    )
    return next((reason for wrong, reason in checks if wrong), "")


def _places(order: Order, standing: OrderContext) -> bool:
    """Return whether the order has experts lie elsewhere than they do."""
    here = standing.experts.placement if standing.experts else ()
    return bool(order.placement) and placements.settled(order.placement) != here


def _placement_problem(order: Order, standing: OrderContext) -> str:
    """Say why its placement of experts can never be taken; "" when it can, or there is none."""
    if not order.placement:
        return ""
    if standing.experts is None:
        return "it places experts, and this job does not let them be placed"
    if order.mode not in (SwitchMode.IN_PLACE, SwitchMode.RESTART):
        return f"it places experts, which an order to {order.mode} cannot"
    experts = standing.experts
    return placements.problem(order.placement, layers=experts.layers, experts=experts.experts)


def _ranks_launched(order: Order, standing: OrderContext) -> int:
    """Return how many ranks the launch has that is to train as ordered."""
    ordered = len(order.ranks)
    if order.mode is SwitchMode.RESIZE:
        return ordered
    if order.mode is SwitchMode.RESUME and standing.resizes:
        return max(ordered, standing.launched)
    return standing.launched


def _ranks_problem(order: Order, launched: int) -> str:
    """Say what is wrong with the list of ranks; "" when nothing is."""
    if len(order.ranks) != order.layout.world_size:
        return (
            f"it names {len(order.ranks)} ranks for layout {order.layout}, which needs "
            f"{order.layout.world_size}"
        )
    if len(set(order.ranks)) != len(order.ranks):
        return f"it names a rank twice: {list(order.ranks)}"
    outside = [rank for rank in order.ranks if not 0 <= rank < launched]
    if outside:
        return f"it names rank {outside[0]}, but only 0 to {launched - 1} were launched"
    return ""
