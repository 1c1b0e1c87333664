"""A rank's part in expert costs: it counts expert-tokens, and agrees with all ranks on the costs.

Only for a job that asked for them (`expert_costs` of `attach`). Counts of all ranks, and the costs
that the leader has, ride on the facts that ranks gather at a save step anyway; what the leader has
counts for all. Invariant: all ranks hold the same costs, those that the checkpoint has; what cannot
be used leaves them as they are.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import ranges
from wattmesh.reconfig.client.cost_client import COSTS_KEY, TOKENS_KEY, UnusedCosts
from wattmesh.reconfig.hook.agreed_costs import AgreedCosts, Scores
from wattmesh.reconfig.hook.loss_pairs import CATASTROPHE, gap_of, gap_of_ranks, waiting
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.wire.experts import (
    MOST_PAIRS,
    STALE_S,
    ExpertCostScores,
    ExpertTokenReport,
    LossPair,
)

log = logging.getLogger(__name__)

KEY = "wattmesh.expert_costs"
"""Name among the extra state of a checkpoint."""

LONGEST_BUSY_S = 1e9
"""What is beyond it, or no number, is not known."""

TakeCosts = Callable[[State, ExpertCostScores], object]
"""Hands costs to the routers of a state; called on every rank with the same costs."""


@runtime_checkable
class HandsOn(Protocol):
    """Hands costs to routers by expert, so that experts can keep the scores that they took.

    `hand_to` of `wattmesh.integrations.pytorch.experts.costs` is one.
    """

    def holders(self, state: State) -> Sequence[tuple[str, Sequence[int]]]:
        """Give each rank's GPU and the numbers of its experts. Collective."""
        ...

    def scores(
        self, costs: ExpertCostScores, holders: Sequence[tuple[str, Sequence[int]]]
    ) -> tuple[tuple[float, ...], str]:
        """Give each expert's score of where it lies, and why they are all 0. Pure."""
        ...

    def hand(
        self, state: State, costs: ExpertCostScores, scores: tuple[float, ...], reason: str
    ) -> object:
        """Let the routers of a state lean by these scores and the costs' strength."""
        ...


class RankExpertCosts:
    """One rank's counts and costs, for the life of the process."""

    def __init__(self, take: TakeCosts | None = None, gpu: str = "") -> None:
        """Hand costs to `take`; None: the job did not ask for them. `gpu`: of this rank."""
        self._take = take
        self._gpu = gpu
        self._counts = self._broken = False
        self._tokens = 0
        self._added: Any = 0
        self._busy_s: float | None = None
        self._gap: float | None = None
        self._leaned = (0.0, 0)
        self._dropped, self._refused = 0, ""
        self._unused = UnusedCosts()
        self._handed: tuple[int, ExpertCostScores] | None = None
        self._holders: tuple[int, Sequence[tuple[str, Sequence[int]]]] | None = None

    @property
    def wanted(self) -> bool:
        """Whether the job asked for costs."""
        return self._take is not None

    def count(
        self,
        tokens: Any,
        busy_s: float | None = None,
        paired: tuple[float, float] | None = None,
    ) -> None:
        """Add what this rank's experts computed in a step; see `Session.count_expert_tokens`."""
        if self._broken:
            return
        self._counts = True
        try:
            added = _summed(tokens) if isinstance(tokens, torch.Tensor) else int(tokens)
            self._added = self._added + added
            if busy_s is not None:
                self._busy_s = (self._busy_s or 0.0) + float(busy_s)
            if paired is not None:
                self._paired(gap_of(*(float(each) for each in paired)))
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            self._miscounted(error)

    def _paired(self, gap: float | None) -> None:
        """Keep the newest pair until the save step; one that ends a lean is not replaced."""
        if gap is not None and not (self._gap is not None and self._gap >= CATASTROPHE):
            self._gap = gap

    def _miscounted(self, error: Exception) -> None:
        """Count nothing any more in this launch: what is in doubt is unknown, not 0."""
        log.error("expert-tokens are counted no more in this launch: %s", error)
        self._broken, self._added = True, 0

    def expect(self, state: State, trainer: Mapping[str, Any]) -> None:
        """Let a fresh state take the costs of the checkpoint that it will load, if it has any."""
        if KEY in trainer.get("extra", {}):
            state.extra[KEY] = AgreedCosts()

    def fact(
        self, launch_store: LaunchStore, state: State, *, leads: bool
    ) -> dict[str, Any] | None:
        """Give this rank's part of the facts at a save step; only the leader adds new costs."""
        if not self.wanted:
            return None
        try:
            # The only time that a device is synchronized: ranks meet here anyway.
            self._tokens, self._added = self._tokens + int(self._added), 0
        except (ValueError, OverflowError, RuntimeError) as error:
            self._miscounted(error)
        known = self._counts and not self._broken and 0 <= self._tokens <= ranges.MOST_COUNTED
        timed = self._busy_s is not None and 0 <= self._busy_s < LONGEST_BUSY_S
        gap, self._gap = self._gap, None
        return {
            "gpu": self._gpu,
            "gap": gap,
            "tokens": self._tokens if known else None,
            "busy_s": self._busy_s if timed else None,
            "costs": _unless_agreed(launch_store.peek(COSTS_KEY), state) if leads else None,
        }

    def agree(self, state: State, generation: Generation, facts: Sequence[Any]) -> None:
        """Hold the leader's costs from now on, if they are others and can be used."""
        agreed = state.extra.get(KEY)
        leader = facts[generation.ranks.index(generation.leader)]
        if not self.wanted or not isinstance(agreed, AgreedCosts) or not leader:
            return
        costs = usable(leader["costs"], generation.run)
        before = agreed.costs
        # What pairs of this save step were measured with.
        self._leaned = agreed.strength, agreed.since
        # What was heard last counts, whichever version it has: a clock may have been ahead.
        # But what quality has stopped.
        self._refused = "" if costs is None else agreed.refuses(costs)
        if self._refused or costs is None:
            return
        if before is None or costs.version != before.version:
            agreed.agree(costs, self._here(costs))

    def _here(self, costs: ExpertCostScores | None) -> Scores | None:
        """Give each expert's score of where it lies in this generation; None: not known."""
        if costs is None or self._holders is None or not isinstance(self._take, HandsOn):
            return None
        return self._take.scores(costs, self._holders[1])[0]

    def tell(
        self,
        launch_store: LaunchStore,
        state: State,
        generation: Generation,
        facts: Sequence[Any],
    ) -> None:
        """Leave what all ranks counted for the client of the daemon; called on the leader."""
        tokens, busy_s = by_gpu(facts)
        leader = facts[generation.ranks.index(generation.leader)]
        why = why_unusable(leader["costs"], generation.run) if leader else ""
        self._unused.say(why or self._refused)
        if not self.wanted or not tokens:
            return
        agreed = state.extra.get(KEY)
        held = agreed if isinstance(agreed, AgreedCosts) else AgreedCosts()
        gap = gap_of_ranks([each["gap"] for each in facts if each])
        left, heard = (launch_store.peek(key) for key in (TOKENS_KEY, COSTS_KEY))
        pairs, dropped = waiting(left, heard, self._pair(gap, state, generation))
        if dropped and len(pairs) == MOST_PAIRS and not self._dropped:
            log.warning("paired probes are dropped: no daemon has judged the newest %d", MOST_PAIRS)
        self._dropped = dropped
        report = ExpertTokenReport(
            run=generation.run,
            incarnation=generation.incarnation,
            attempt=generation.attempt,
            seq=launch_store.count("experts/seq"),
            tokens=tokens,
            busy_s=busy_s,
            layout=generation.layout,
            strength=held.strength,
            version=held.costs.version if held.costs else 0,
            variation=held.variation,
            pending=held.pending(self._here(held.costs)),
            stopped=held.costs.stopped if held.costs else False,
            gap=gap,
            pairs=pairs,
            dropped=dropped,
        )
        launch_store.put(TOKENS_KEY, {"report": report.to_json(), "counted_at_s": time.time()})

    def _pair(self, gap: float | None, state: State, generation: Generation) -> LossPair | None:
        """Give the pair of a save step; None where none was measured, or nothing leaned."""
        strength, lean = self._leaned
        if gap is None or strength == 0.0:
            return None
        return LossPair(
            step=state.position.step,
            gap=gap,
            strength=strength,
            lean=lean,
            generation=generation.number,
        )

    def settle(self, state: State, generation: Generation, *, leads: bool) -> None:
        """Begin a generation or go on after a save step: hand the agreed costs to the routers."""
        if self._take is None:
            # Of a launch that had asked. What its routers have is the script's, and stays.
            state.extra.pop(KEY, None)
            return
        agreed = state.extra.setdefault(KEY, AgreedCosts())
        if isinstance(self._take, HandsOn) and (self._holders or (0,))[0] != generation.number:
            self._holders = generation.number, self._take.holders(state)
        costs = agreed.costs if isinstance(agreed, AgreedCosts) else None
        if not isinstance(agreed, AgreedCosts) or costs is None:
            return
        if self._handed == (generation.number, costs):
            return
        self._handed = (generation.number, costs)
        said = costs.neutral_because or f"strength {costs.strength:g}"
        if isinstance(self._take, HandsOn) and self._holders is not None:
            here, reason = self._take.scores(costs, self._holders[1])
            kept = agreed.keep(here)
            if agreed.pending(here):
                said, reason = f"{said}; experts lie elsewhere, and keep the lean they had", ""
            self._take.hand(state, costs, kept, reason)
        else:
            agreed.called_in(_where(generation))
            self._take(state, costs)
        if leads:
            log.info("expert costs, version %d: %s", costs.version, said)


def _where(generation: Generation) -> str:
    """Name where a generation's experts lie, but for the GPUs of its ranks."""
    placed = hashlib.sha256(repr(generation.placement).encode()).hexdigest()[:16]
    return f"{generation.layout} {placed}"


def _summed(tokens: torch.Tensor) -> torch.Tensor:
    """Add up counts where they are, exactly; a sum of many in fp32 or bf16 would not be."""
    dtype = torch.float64 if tokens.is_floating_point() else torch.int64
    return tokens.detach().sum(dtype=dtype)


def _unless_agreed(left: Any, state: State) -> Any:
    """Leave out costs that all ranks have: for thousands of GPUs they are a megabyte."""
    agreed = state.extra.get(KEY)
    known = agreed.costs if isinstance(agreed, AgreedCosts) else None
    same = isinstance(left, dict) and known is not None and left.get("version") == known.version
    return None if same else left


def usable(answer: object, run: str) -> ExpertCostScores | None:
    """Read what a daemon said; None where it is malformed, stale, of another run, or says nothing.

    A pure function of what all ranks were given, so that all conclude the same.
    """
    try:
        costs = ExpertCostScores.from_json(answer)
    except InputInvalid:
        return None
    return None if costs.version == 0 or why_unusable(answer, run) else costs


def why_unusable(answer: object, run: str) -> str:
    """Say why what a daemon said cannot be used; "" where it can, or says nothing."""
    if answer is None:
        return ""
    try:
        costs = ExpertCostScores.from_json(answer)
    except InputInvalid as error:
        return f"they are malformed: {error}"
    if costs.run != run:
        return f"they are of the run {costs.run}"
    if costs.age_s > STALE_S:
        return f"they are {costs.age_s:.0f} s old, more than {STALE_S:g} s"
    return ""


def by_gpu(facts: Sequence[Any]) -> tuple[dict[str, int], dict[str, float]]:
    """Sum what ranks counted by GPU; a GPU of a rank that does not count is unknown, not 0."""
    tokens: dict[str, int] = {}
    busy_s: dict[str, float] = {}
    unknown, untimed = {""}, set()
    for each in facts:
        gpu = each["gpu"] if each else ""
        if not each or each["tokens"] is None:
            unknown.add(gpu)
            continue
        tokens[gpu] = tokens.get(gpu, 0) + each["tokens"]
        if each["busy_s"] is None:
            untimed.add(gpu)
        else:
            busy_s[gpu] = busy_s.get(gpu, 0.0) + each["busy_s"]
    return (
        {gpu: each for gpu, each in tokens.items() if gpu not in unknown},
        {gpu: each for gpu, each in busy_s.items() if gpu not in unknown | untimed},
    )
