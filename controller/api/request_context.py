"""Everything that a handler may use, and the caller on whose behalf it acts.

Invariant: the right to act is decided only here, from the caller's uid as the kernel gives it.
"""

import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from wattmesh.controller.api.transport.peers import PeerIdentity, is_operator
from wattmesh.controller.expert_costs.reports import TokenReports
from wattmesh.controller.expert_costs.views import ExpertCostsView, nothing_known
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_nodes import ANY
from wattmesh.controller.journal.runs.run_row import LIVES
from wattmesh.controller.journal.runs.run_store import RunPlan, RunRow
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.process.change_signal import ChangeSignal
from wattmesh.controller.zoned_time import zoned_time
from wattmesh.errors import FixInput, InputInvalid, Refused, RetryLater
from wattmesh.reconfig.ranges import clean, shown
from wattmesh.telemetry.energy.ledger import SlotGrid

LONGEST_TEXT = 500
"""Most characters of a reason, or of a name, that a person gives."""

HALF_HOURS = SlotGrid(origin=datetime(2020, 1, 1, tzinfo=UTC), interval_s=1800.0)
"""Ledger slots where no signal sets others."""

StateOrder = Sequence[Sequence[str]]
"""Groups of states of runs; a name means a run of the first group that has one."""

LIVE_FIRST: StateOrder = (LIVES, ("lost",), ("finished",))
NOT_ENDED_FIRST: StateOrder = ((*LIVES, "lost"), ("finished",))
"""For ending a run: the lost one may be meant as well as the live one that took its name."""


class NotFound(FixInput):
    """There is no such run, or no such page."""


class StandsBy(RetryLater):
    """Another daemon leads; this one takes no reports and no orders."""


class Conflict(FixInput):
    """What was asked does not fit what is; the sentence says what to do first."""


class Owned(Protocol):
    """Something that belongs to a user, such as a run."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def owner_uid(self) -> int:
        """The uid of the user it belongs to."""
        ...


class TellsExpertCosts(Protocol):
    """Says what a run is told of its experts' costs."""

    def __call__(self, row: RunRow, *, details: bool) -> ExpertCostsView:
        """Say it, with what is behind it if `details`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What handlers share.

    Attributes:
        plan_for: gives what the settings say of a run, by its name; fixed at its registration.
        wake: makes the next control cycle due now.
        grid: gives the slots of the ledger.
        token_reports: keeps what runs say of their experts. `expert_costs`: says what a run is
            told of them.
    """

    journal: Journal
    loop_facts: LoopFacts
    changes: ChangeSignal
    plan_for: Callable[[str], RunPlan]
    wake: Callable[[], None]
    grid: Callable[[], SlotGrid] = lambda: HALF_HOURS
    token_reports: TokenReports = field(default_factory=TokenReports)
    expert_costs: "TellsExpertCosts" = lambda row, *, details: nothing_known(row.run)

    @property
    def now(self) -> datetime:
        """The wall time."""
        return self.loop_facts.clock.now()

    def lead(self) -> int:
        """Give the epoch under which this daemon may write.

        Raises:
            StandsBy: the caller should ask the leader.
        """
        epoch = self.loop_facts.lead.epoch
        if epoch is None:
            leader = self.loop_facts.lead.leader or "nobody yet"
            raise StandsBy(
                f"This daemon stands by and takes no reports or orders ({leader} leads); ask the "
                "leader, or wait until this one takes over."
            )
        return epoch

    def act(self) -> int:
        """Give the epoch under which this daemon may act now, whether or not the journal answers.

        Raises:
            StandsBy: another daemon may lead by now.
        """
        epoch, late_s = (
            self.lead(),
            self.loop_facts.clock.monotonic() - self.loop_facts.lead.until_s,
        )
        if late_s >= 0:
            raise StandsBy(
                f"This daemon's lease ran out {late_s:.0f} s ago and was not renewed, so another "
                "one may lead by now; ask that one, or ask again."
            )
        return epoch

    def run(
        self, word: str, peer: PeerIdentity | None = None, order: StateOrder = LIVE_FIRST
    ) -> RunRow:
        """Find the one run that an id or a name means.

        A name means the live run of that name; if there is none, the lost one; if there is none,
        the newest that ended. Where several users have such a run, it means the caller's own,
        unless the caller is an operator, who may act on each of them.

        Args:
            word: id, name, or the beginning of an id as `wattmesh runs` shows it.
            peer: who asks.
            order: which states of runs of that name come before which.

        Raises:
            NotFound: there is none. Conflict: there are several.
        """
        runs = self.journal.runs
        found = runs.called(word, self.now) or runs.beginning(word, self.now)
        if not found:
            raise NotFound(f"There is no run {word!r}; `wattmesh runs` lists those there are.")
        if len(found) == 1 and found[0].name != word:
            return found[0]
        meant = _meant(found, word, None if self._operator(peer) else peer, order)
        if len(meant) > 1:
            listed = ", ".join(
                f"{row.run} (uid {row.owner_uid}, {row.ending or row.state})" for row in meant[:5]
            )
            more = f" and {len(meant) - 5} more" if len(meant) > 5 else ""
            raise Conflict(f"{word!r} can mean several runs; give the id: {listed}{more}.")
        return meant[0]

    def _operator(self, peer: PeerIdentity | None) -> bool:
        return peer is not None and is_operator(peer, self.loop_facts.settings.api.operators_group)


def _meant(
    found: Sequence[RunRow], word: str, peer: PeerIdentity | None, order: StateOrder
) -> Sequence[RunRow]:
    """Give the runs that a word can mean, newest first.

    Args:
        found: every run of that id or name.
        word: the id or name that was given.
        peer: the caller whose own runs come first; None: no user's do.
        order: which states come before which.
    """
    if any(row.name != word for row in found):
        return found
    for states in order:
        standing = [row for row in found if row.state in states]
        own = [row for row in standing if peer is not None and row.owner_uid == peer.uid]
        meant = own or standing
        if meant:
            live = any(row.state in LIVES for row in meant)
            one = not live and len({row.owner_uid for row in meant}) == 1
            return meant[:1] if one else meant
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request.

    Attributes:
        path, query: parameters of the address, decoded.
        body: the JSON object that was sent; empty for reading calls.
    """

    peer: PeerIdentity
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def who(self) -> str:
        """Name the caller for the journal."""
        try:
            return f"{pwd.getpwuid(self.peer.uid).pw_name} (uid {self.peer.uid})"
        except KeyError:
            return f"uid {self.peer.uid}"

    def as_operator(self, context: RequestContext, act: str) -> None:
        """Let only operators pass.

        Raises:
            Refused: the caller is not an operator.
        """
        group = context.loop_facts.settings.api.operators_group
        if not is_operator(self.peer, group):
            raise Refused(
                f"uid {self.peer.uid} may not {act}: only members of {group} may; ask one of them."
            )

    def as_agent(self, context: RequestContext) -> None:
        """Let only agents pass: callers with a token, or on this machine operators.

        Raises:
            Refused: the caller is not an agent, or is another node's.
        """
        group = context.loop_facts.settings.api.operators_group
        if self.peer.agent and self.peer.node not in (ANY, self.path["node"]):
            raise Refused(
                f"this token is {self.peer.node}'s, and speaks for no other node; an operator "
                f"makes one for {self.path['node']} with `wattmesh nodes token make`"
            )
        if not self.peer.agent and not is_operator(self.peer, group):
            raise Refused(
                f"uid {self.peer.uid} may not speak for a node: run the agent as root or as the "
                f"daemon's user, or make its user a member of {group}."
            )

    def as_owner(self, context: RequestContext, row: Owned, act: str) -> None:
        """Let only a run's owner and operators pass.

        Raises:
            Refused: the caller is neither.
        """
        group = context.loop_facts.settings.api.operators_group
        if self.peer.uid != row.owner_uid and not is_operator(self.peer, group):
            raise Refused(
                f"uid {self.peer.uid} may not {act} {row.name}: it belongs to uid {row.owner_uid}; "
                f"only that user and members of {group} may."
            )

    def text(self, key: str, *, default: str | None = None) -> str:
        """Read one text field of the body.

        Raises:
            InputInvalid: the field is missing, empty, not text, or too long.
        """
        value = self.body.get(key, default)
        if value is None and default is not None:
            value = default
        if not isinstance(value, str) or not value.strip():
            raise InputInvalid(f'the field "{key}" must be text, got {shown(value)}')
        # This text appears in sentences on other people's screens.
        said = clean(value.strip())
        if len(said) > LONGEST_TEXT:
            raise InputInvalid(f'the field "{key}" has more than {LONGEST_TEXT} characters')
        return said

    def number(self, key: str, *, default: float, lowest: float, highest: float) -> float:
        """Read one number of the query.

        Raises:
            InputInvalid: it is not a number, or out of range.
        """
        text = self.query.get(key)
        try:
            value = default if text is None else float(text)
        except ValueError:
            raise InputInvalid(f"{key}={text!r} is not a number") from None
        if not lowest <= value <= highest:
            raise InputInvalid(f"{key}={text} must be between {lowest:g} and {highest:g}")
        return value

    def moment(self, key: str) -> datetime | None:
        """Read one time of the query; None when it is not there.

        Raises:
            InputInvalid: it is not a time, or has no zone.
        """
        text = self.query.get(key)
        return None if text is None else moment_of(text, key)


def moment_of(text: str, field: str) -> datetime:
    """Read a time with its zone.

    Raises:
        InputInvalid: it is none.
    """
    found = zoned_time(text)
    if found is None:
        raise InputInvalid(f"{field}={text!r} is not a time; write 2026-12-01T00:00:00Z")
    return found
