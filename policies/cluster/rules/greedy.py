"""Rule: everyone the speed it needs, and what is left where it trains most for a gram. Pure.

Slot by slot, without a plan. Who has least relative slack chooses first, and takes the point of
fewest joules for a token that is fast enough for its deadline. Where the grid is cleaner than the
mean of the day ahead, what is left of GPUs and watts goes, step by step, to the run that trains
most tokens more for a watt more.
"""

from collections.abc import Sequence
from statistics import fmean

from wattmesh.policies.cluster.rules.dispatch import DispatchedRun, SlotRoom, dispatched
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun

DAY_S = 86400.0

KEEP = 0.05
"""Share of the time left that is kept for what comes between."""

WORTH_A_SWITCH = 0.03
"""Least share of joules for a token that a switch has to save."""


def greedy(cluster: SharedCluster, runs: Sequence[SharedRun]) -> dict[str, DispatchedRun]:
    """Follow the rule to the end of the slots; `runs` in order of arrival."""
    edges_s = cluster.edges_s

    def choose(slot: int, there: Sequence[DispatchedRun], room: SlotRoom) -> dict[str, int]:
        now_s = edges_s[slot]
        clean = cluster.g_per_kwh[slot] <= _day_ahead(cluster, edges_s, slot)
        order = sorted(there, key=lambda one: relative_slack(one.run, one.left, now_s))
        chosen = {
            each.run.name: room.chosen(each, _wishes(each, now_s, cluster.seconds[slot]))
            for each in order
        }
        while clean and _one_faster(order, room, chosen, cluster.seconds[slot]):
            pass
        return chosen

    return dispatched(cluster, runs, choose)


def relative_slack(run: SharedRun, left: float, now_s: float) -> float:
    """Give the time left over the time that the fastest point needs; below 1 it is late."""
    return (run.deadline_s - now_s) * run.fastest / max(left, 1e-12)


def _day_ahead(cluster: SharedCluster, edges_s: Sequence[float], slot: int) -> float:
    until = cluster.until(edges_s[slot] + DAY_S)
    return fmean(cluster.g_per_kwh[slot:until])


def _wishes(each: DispatchedRun, now_s: float, seconds: float) -> list[int]:
    """List options: those that are fast enough, the thriftiest first, then others by speed."""
    run = each.run
    time_s = (run.deadline_s - now_s) * (1 - KEEP)
    need = each.left / time_s if time_s > 0 else float("inf")
    by_speed = sorted(range(len(run.options)), key=lambda n: -each.trains(n, seconds))
    enough = [n for n in by_speed if each.trains(n, seconds) >= need * seconds]
    joules = {n: run.options[n].power_w / run.options[n].tokens_per_s for n in enough}
    if each.at in joules:
        joules[each.at] *= 1 - WORTH_A_SWITCH
    return [*sorted(enough, key=lambda n: joules[n]), *by_speed]


def _one_faster(
    order: Sequence[DispatchedRun], room: SlotRoom, chosen: dict[str, int], seconds: float
) -> bool:
    """Make one run faster, the one that trains most more for a watt; say whether one was."""
    best: tuple[float, DispatchedRun, int] | None = None
    for each in order:
        now, options = chosen[each.run.name], each.run.options
        for option in room.fitting(each, now):
            more = each.trains(option, seconds) - each.trains(now, seconds)
            gain = more / max(options[option].power_w - options[now].power_w, 1.0)
            if more > 0 and (best is None or gain > best[0]):
                best = (gain, each, option)
    if best is None:
        return False
    _, each, option = best
    room.change(each, chosen[each.run.name], option)
    chosen[each.run.name] = option
    return True
