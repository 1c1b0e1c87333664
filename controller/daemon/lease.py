"""Leadership: one daemon per journal acts, the others stand by and observe.

Invariant: the epoch in the loop facts is one that the journal gave to this holder; the journal
itself refuses acts of any other epoch, so a daemon that does not know yet that it lost harms none.
What does not pass through the journal (a clock or cap told to an agent) ends with `Lead.until_s`,
before the journal can give the lease to another.
"""

import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wattmesh.controller.journal.leadership import Leadership
from wattmesh.controller.journal.runs.liveness import Liveness
from wattmesh.controller.loop_facts import Lead, LoopFacts
from wattmesh.controller.process.life import boot_id
from wattmesh.errors import JournalUnavailable
from wattmesh.quantities import duration

log = logging.getLogger(__name__)

TERM_SHARE = 0.9
"""Of the lease's time, counted here from before it was asked for; the rest is for clocks whose
rates differ, and for an answer that is on its way."""


CLOCKS_APART_S = 60.0
"""Beyond this the machine's clock or the database's is wrong, and deadlines cannot be judged."""


def holder_name(api_socket: Path) -> str:
    """Name this daemon across restarts.

    The socket's lock file allows one live process per path, so a daemon that restarts under the
    same name knows that its predecessor is dead and leads at once. The boot id tells cloned
    machines apart.
    """
    return f"{socket.gethostname()} ({api_socket}, boot {boot_id()[:8] or 'unknown'})"


class Lease:
    """Holds, or waits for, the lease on the journal."""

    def __init__(
        self,
        leadership: Leadership,
        loop_facts: LoopFacts,
        holder: str,
        ttl_s: float,
        on_recovery: Callable[[str], None],
        *,
        liveness: Liveness,
        simulated: bool = False,
    ) -> None:
        """Keep what the lease needs; the journal is not asked before the first turn.

        Args:
            leadership: the lease row in the journal.
            loop_facts: where the epoch, and whether the journal answers, is kept.
            holder: this daemon's name across restarts.
            ttl_s: how long the lease outlives its holder.
            on_recovery: told in a sentence when the journal answers again.
            liveness: told when this daemon begins to hear the runs, and when another does.
            simulated: whether the loop facts' clock is another than this machine's; the database's
                does not follow it, and they are not compared.
        """
        self._leadership = leadership
        self._loop_facts = loop_facts
        self._holder = holder
        self._ttl_s = ttl_s
        self._asked_s = 0.0
        self._on_recovery = on_recovery
        self._liveness = liveness
        self._simulated = simulated

    def turn(self) -> None:
        """Renew the lease, or try to get it.

        Raises:
            JournalUnavailable: it is not known who leads; the epoch stands, the term runs out.
        """
        loop_facts = self._loop_facts
        self._asked_s = loop_facts.clock.monotonic()
        try:
            self._compare_clocks()
            if loop_facts.lead.epoch is not None and not self._renew(loop_facts.lead.epoch):
                log.warning("lost the lease: another daemon leads; standing by")
                loop_facts.lead = replace(loop_facts.lead, epoch=None)
                self._liveness.stand_by()
            elif loop_facts.lead.epoch is not None:
                loop_facts.lead = replace(loop_facts.lead, until_s=self._term_ends_s())
            if loop_facts.lead.epoch is None:
                self._acquire()
        except JournalUnavailable as error:
            loop_facts.journal_failed(str(error))
            raise
        ended = loop_facts.journal_answered()
        if ended:
            log.warning("%s", ended)
            self._on_recovery(ended)

    def _compare_clocks(self) -> None:
        """Note whether this machine's clock and the database's are one.

        Raises:
            JournalUnavailable: the database does not answer; what was noted before stands.
        """
        if self._simulated:
            return
        ahead_s = self._leadership.clock_ahead_s(self._loop_facts.clock.now)
        apart = ""
        if abs(ahead_s) > CLOCKS_APART_S:
            way = "ahead of" if ahead_s > 0 else "behind"
            apart = (
                f"This machine's clock is {duration(abs(ahead_s))} {way} the database's: put the "
                "wrong one right (`timedatectl` on both). Until then this daemon does not take the "
                "lead; one that leads keeps it"
            )
        if apart and not self._loop_facts.trusted.apart:
            log.warning("%s", apart)
        self._loop_facts.trusted.apart = apart

    def release(self) -> None:
        """Give the lease up, so the next daemon leads at once; without the journal it expires."""
        epoch = self._loop_facts.lead.epoch
        if epoch is None:
            return
        self._loop_facts.lead = replace(self._loop_facts.lead, epoch=None)
        try:
            self._leadership.release(self._holder, epoch)
        except JournalUnavailable as error:
            log.warning("the lease was not released and runs out by itself: %s", error)

    def _term_ends_s(self) -> float:
        return self._asked_s + TERM_SHARE * self._ttl_s

    def _renew(self, epoch: int) -> bool:
        return self._leadership.renew(self._holder, epoch, self._ttl_s)

    def _acquire(self) -> None:
        before = self._leadership.current()
        epoch = None
        if not self._loop_facts.trusted.apart:
            epoch = self._leadership.acquire(self._holder, self._ttl_s)
        if epoch is not None:
            log.info("leading in epoch %d", epoch)
            self._liveness.lead(self._loop_facts.clock.now(), before.expires_at if before else None)
            self._loop_facts.lead = Lead(
                epoch=epoch,
                journal=self._leadership.journal,
                leader=self._holder,
                until_s=self._term_ends_s(),
            )
            return
        row = self._leadership.current()
        leader = row.holder if row else ""
        if leader != self._loop_facts.lead.leader:
            log.info("standing by: %s leads", leader)
        self._loop_facts.lead = replace(self._loop_facts.lead, leader=leader)
