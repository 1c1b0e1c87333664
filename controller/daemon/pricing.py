"""Books the grams of what was drawn: brings both ledgers up to now, from time to time.

Invariant: only the leader prices, and nothing while it is not known what time it is: what is priced
up to a wrong date is not priced again when that date comes.
"""

from collections.abc import Callable

from wattmesh.controller.accounting.accounts import Accounts
from wattmesh.controller.cycle import fleet
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.signals.grid import GridProviders
from wattmesh.controller.signals.slot_prices import Tariff
from wattmesh.telemetry.energy.ledger import SlotGrid


class PricingDuty:
    """Prices what is new, in one turn."""

    def __init__(
        self, journal: Journal, loop_facts: LoopFacts, grid: Callable[[], GridProviders]
    ) -> None:
        """Keep the journal and the loop facts; `grid` gives the present signals."""
        self._journal, self._loop_facts, self._grid = journal, loop_facts, grid
        self._books: tuple[tuple[Tariff | None, SlotGrid, int], Accounts] | None = None

    def turn(self) -> None:
        """Bring both ledgers of grams up to now.

        Raises:
            Fenced: another daemon leads by now; what was not committed is not written.
            JournalUnavailable: the next turn does what this one could not.
        """
        loop_facts, grid = self._loop_facts, self._grid()
        facts, trusted = loop_facts.signals.accounting, loop_facts.trusted
        if trusted.held_s() > 0 or facts is None or loop_facts.lead.epoch is None:
            return
        tariff, slots, pue_milli = books = (
            grid.tariff,
            grid.slots,
            loop_facts.settings.site.pue_milli(),
        )
        if self._books is None or self._books[0] != books:
            # Kept between turns: it remembers what is priced already.
            accounts = Accounts(
                self._journal, facts.signal, slots, pue_milli, tariff, limits=self._limits_w
            )
            self._books = (books, accounts)
        self._books[1].price(loop_facts.clock.now(), settling=not trusted.doubt())

    def _limits_w(self) -> dict[str, float]:
        """Give the power limits, in W, of all boards that are or were read."""
        sampled = self._loop_facts.sampled
        own = sampled.sample.readings if sampled else ()
        return fleet.limits_w(self._loop_facts.fleet.nodes, own)
