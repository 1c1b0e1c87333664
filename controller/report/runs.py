"""What a report says of one run beside its ledger rows: tokens, hardware, grams per token.

Invariant: what is not known is None and says nothing; tokens are those between the month's borders,
so months add up to the run.
"""

from datetime import datetime

from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs import RunRow

UG = 1_000_000
HOUR_S = 3600.0
BILLION = 1e9


def tokens_between(journal: Journal, run: RunRow, start: datetime, end: datetime) -> int | None:
    """Give the tokens trained in [start, end); None where nobody knows how far it was then.

    Marks are made once a minute, so a border may be off by as much training.
    """
    marks = journal.ledger.token_marks(run.run)

    def at(moment: datetime) -> int | None:
        if moment <= run.registered_at:
            return marks[0].tokens if marks else None
        if moment >= (run.finished_at or run.last_seen_at):
            return run.tokens
        known = [each.tokens for each in marks[1:] if each.at <= moment]
        return known[-1] if known else None

    first, last = at(start), at(end)
    return None if first is None or last is None else max(0, last - first)


def embodied_ug(run: RunRow, gpu_s: float) -> int | None:
    """Give the embodied micrograms of the GPU time a run held; None: its catalogue has none."""
    catalogue = run.catalogue
    if catalogue is None or not catalogue.embodied_g_per_gpu_hour:
        return None
    return round(catalogue.embodied_g_per_gpu_hour * gpu_s / HOUR_S * UG)


def sci_g(
    carbon_ug: int, embodied: int | None, tokens: int | None, unpriced_mj: int
) -> float | None:
    """Give SCI = (E x I + M) / R in grams per 10^9 tokens; None while a part of it is not known."""
    if embodied is None or not tokens or unpriced_mj:
        return None
    return (carbon_ug + embodied) / UG / (tokens / BILLION)
