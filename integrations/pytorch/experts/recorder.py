"""Records which experts tokens chose, as `wattmesh experts place RUN` reads it.

    record_routing(session, lambda state: routers_of(state))    # once, after `attach`

After a save step each router keeps the choice of its first call that trains, and nothing of later
ones; at the next save step the leader writes the newest tokens into the run's folder.

Invariant: a training computes what it does without us, bit for bit, and is never ended by us: what
cannot be recorded is one warning. No device is waited for but at a save step.

Shape suffixes: L layers, N tokens, P experts per token.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.experts.huggingface import HuggingFaceRouters
from wattmesh.integrations.pytorch.experts.router import EnergyRouter
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.recorded_routing import write_routing
from wattmesh.reconfig.state.state import State

log = logging.getLogger(__name__)

TOKENS = 4096
MOST_TOKENS = 65536
PARTS = 4
"""Save steps over which the tokens are spread at least, so that they are of several batches."""

MOST_CHOICES = 8_000_000
"""Layers times tokens times experts per token: a file of at most 48 MB, which is still read."""

EVERY_S = 600.0

UNSEEN = (
    "expert routing: a router was not seen to choose, as in a compiled model, or answered in a way "
    "that is not known; nothing is recorded"
)

Routers = Callable[[State], Iterable[EnergyRouter | HuggingFaceRouters]]


class RecordedSession(Protocol):
    """What is used of a session."""

    @property
    def state(self) -> State:
        """What this rank trains with."""

    @property
    def generation(self) -> Generation:
        """Its layout."""

    @property
    def leads(self) -> bool:
        """Whether this rank leads."""

    @property
    def run(self) -> str:
        """The run's UUID."""

    @property
    def position(self) -> Position:
        """Where training stands."""

    @property
    def routing_file(self) -> Path:
        """Where the recording goes."""

    def after_save_step(self, call: Callable[[], None]) -> None:
        """Call this after each save step."""


def record_routing(
    session: RecordedSession, routers: Routers, *, tokens: int = TOKENS, every_s: float = EVERY_S
) -> None:
    """Record what routers choose from the next save step on, on the rank that leads.

    Args:
        session: from `attach`.
        routers: of a state, in the order of their layers.
        tokens: of this rank that are kept, from 4 to 65,536: the newest. Fewer, where layers and
            experts per token are so many that the file would be too large.
        every_s: once there are so many, seconds between two recordings.

    Raises:
        InputInvalid: another number of tokens.
    """
    if type(tokens) is not int or not PARTS <= tokens <= MOST_TOKENS:
        raise InputInvalid(
            f"record_routing: tokens = {tokens!r} is not between {PARTS} and {MOST_TOKENS}"
        )
    session.after_save_step(_Recorder(session, routers, tokens, every_s).save_step)


class _Recorder:
    """The newest choices of one rank. It holds no module: a switch must be able to free them."""

    def __init__(
        self, session: RecordedSession, routers: Routers, tokens: int, every_s: float
    ) -> None:
        self._session, self._routers = session, routers
        self._tokens, self._every_s = tokens, every_s
        self._seen: list[Tensor | None] = []
        self._handles: list[Any] = []
        self._armed_at = -1
        self._experts = self._most = 0
        self._kind: tuple[int, ...] = ()
        self._window: deque[list[Tensor]] = deque()
        self._next_s = 0.0
        self._told: set[str] = set()

    def save_step(self) -> None:
        """Write what was seen since the save step before, and look again."""
        try:
            self._collect()
            due = self._held() < self._most or time.monotonic() >= self._next_s
            if self._session.leads and (due or not self._window):
                self._arm()
        # Whatever goes wrong in a user's model or file system, training goes on.
        except Exception as error:
            self._disarm()
            self._say(f"expert routing is not recorded: {error}")

    def _arm(self) -> None:
        layout = self._session.generation.layout
        if layout.pp > 1:
            self._say(
                f"expert routing is not recorded in {layout}: no rank of a pipeline has all layers"
            )
            return
        found = list(_modules(self._routers(self._session.state)))
        experts = {len(each.lean_X) for each in found}
        if len(experts) != 1:
            self._say(
                "expert routing is not recorded: this model has "
                + ("layers of different numbers of experts" if found else "no router")
            )
            return
        self._experts = experts.pop()
        self._seen, self._armed_at = [None] * len(found), self._session.position.step
        self._handles = []
        for at, module in enumerate(found):
            self._handles.append(module.register_forward_hook(self._hook(at)))

    def _hook(self, at: int) -> Callable[[nn.Module, Any, Any], None]:
        seen, handles, most = self._seen, self._handles, -(-self._tokens // PARTS)

        def note(_: nn.Module, __: Any, said: Any) -> None:
            # Recomputation, and microbatches after the first, find nothing left to do.
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return
            if seen[at] is None:
                seen[at] = _some(said, most)
            handles[at].remove()

        return note

    def _disarm(self) -> list[Tensor | None]:
        for each in self._handles:
            each.remove()
        seen, self._seen, self._handles = self._seen, [], []
        return seen

    def _collect(self) -> None:
        """Take over what routers kept, and write it."""
        seen = self._disarm()
        step = self._session.position.step
        if not seen or step <= self._armed_at or not self._session.leads:
            return
        chosen_LNP = [each.cpu() for each in seen if each is not None]
        if len(chosen_LNP) < len(seen):
            self._say(UNSEEN)
            return
        if len({len(each) for each in chosen_LNP}) > 1:
            self._say("expert routing is not recorded: layers had different numbers of tokens")
            return
        kind = (self._experts, *(each.shape[1] for each in chosen_LNP))
        if kind != self._kind:
            self._kind = kind
            self._window.clear()
        self._window.append(chosen_LNP)
        self._most = min(self._tokens, MOST_CHOICES // sum(kind[1:]))
        while self._held() > self._most:
            self._window.popleft()
        self._next_s = time.monotonic() + self._every_s
        write_routing(
            self._session.routing_file,
            run=self._session.run,
            step=self._armed_at + 1,
            experts=self._experts,
            chosen=[torch.cat(parts).tolist() for parts in zip(*self._window, strict=True)],
        )

    def _held(self) -> int:
        return sum(len(each[0]) for each in self._window)

    def _say(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            log.warning("%s", sentence)


def _modules(routers: Iterable[EnergyRouter | HuggingFaceRouters]) -> Iterable[Any]:
    for each in routers:
        if isinstance(each, HuggingFaceRouters):
            yield from each.gates
        else:
            yield each


def _some(said: Any, most: int) -> Tensor | None:
    """Take at most so many tokens from all over a choice, (N, P); None where there is none."""
    # Modes that watch operators (selective recomputation) must not count ours.
    with torch_compat.no_modes():
        chosen_NP = getattr(said, "chosen_NP", None)
        if chosen_NP is None and isinstance(said, tuple) and len(said) == 3:
            chosen_NP = said[2]
        if isinstance(chosen_NP, DTensor):
            chosen_NP = chosen_NP.to_local()
        if not isinstance(chosen_NP, Tensor) or chosen_NP.dim() != 2 or not len(chosen_NP):
            return None
        return chosen_NP[:: -(-len(chosen_NP) // most)].clone()
