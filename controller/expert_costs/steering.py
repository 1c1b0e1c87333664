"""How far a run may lean now, by its settings and the daemon's mode, and if its scores may move.

Invariant: of a run whose strength wattmesh moves, nothing that is told moves its experts' lean
beyond its `variation`, or while its learning rate decays, but what takes the lean back.
"""

from dataclasses import replace

from wattmesh.controller.expert_costs.learning import Learning
from wattmesh.controller.expert_costs.strength import (
    StrengthLoop,
    leans_by,
    newest_of,
    price_of,
    trained,
)
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.settings.model import RunSection
from wattmesh.policies.decision import Mode
from wattmesh.policies.experts.live_spans import RunCount
from wattmesh.policies.experts.strength import (
    StrengthLimits,
    StrengthStep,
    allowed,
    scores_stay,
    why_lean_stays,
)


def steer(
    loop_facts: LoopFacts, row: RunRow, learning: Learning, count: RunCount, *, differ: bool
) -> None:
    """Decide the strength anew, of a run whose strength wattmesh may move."""
    section = _steered(loop_facts, row)
    if section is None:
        # Pairs that wait meanwhile are of no lean that wattmesh moves: they are not judged later.
        judged = newest_of(count.launch, count.pairs) if count.pairs else learning.loop.judged
        learning.step, learning.loop = None, StrengthLoop(judged=judged)
        return
    told = learning.telling.told
    # A checkpoint from before the stop does not know of it.
    count = replace(count, stopped=count.stopped or (told is not None and told.stopped))
    price = price_of(loop_facts.turned, loop_facts.clock.monotonic())
    learning.step = learning.loop.step(
        count, row, _limits(section), price=price, differ=differ, untaken=learning.untaken
    )


def strength_of(loop_facts: LoopFacts, row: RunRow, learning: Learning) -> StrengthStep:
    """Return what a run is told to lean by, as its settings and the daemon's mode allow."""
    section = loop_facts.settings.runs.get(row.name)
    none = StrengthStep(strength=0.0, stopped=False, why="")
    if section is None:
        return none
    acts, most = loop_facts.settings.mode is Mode.ACT, section.expert_strength
    if not section.expert_control:
        return replace(none, strength=most) if acts else none
    told = learning.telling.told
    held = replace(none, strength=told.strength, stopped=told.stopped) if told else none
    step = learning.step or held
    if not acts:
        return replace(none, stopped=step.stopped)
    return step if step.strength <= most else replace(step, strength=most, why=allowed(most))


def scores_are_settled(loop_facts: LoopFacts, row: RunRow, learning: Learning) -> bool:
    """Return whether a run is told no other scores than those that it has."""
    section, newest = _steered(loop_facts, row), learning.loop.before
    if section is None or newest is None:
        return False
    if learning.untaken and newest.strength > 0:
        return True
    to = learning.step.strength if learning.step is not None else 0.0
    return scores_stay(leans_by(newest), trained(row), _limits(section), to)


def renewal(loop_facts: LoopFacts, row: RunRow, learning: Learning, to: float) -> tuple[bool, str]:
    """Decide whether experts that lie elsewhere take the scores of the GPUs that they lie on now.

    Args:
        loop_facts: of the daemon.
        row: the run.
        learning: what is known of it.
        to: the strength that it is told.

    Returns:
        Whether they do; and why they do not, "" where there is nothing to take.
    """
    newest, section = learning.newest, _steered(loop_facts, row)
    if newest is None or newest.pending <= 0 or to <= 0 or learning.untaken:
        return False, ""
    if section is None:
        return True, ""
    why = why_lean_stays(leans_by(newest), newest.pending, trained(row), _limits(section), to)
    return not why, why


def _steered(loop_facts: LoopFacts, row: RunRow) -> RunSection | None:
    """Return the settings of a run whose strength wattmesh moves."""
    section = loop_facts.settings.runs.get(row.name)
    return section if section is not None and section.expert_control else None


def _limits(section: RunSection) -> StrengthLimits:
    return StrengthLimits(most=section.expert_strength, freeze_at=section.expert_freeze_at)
