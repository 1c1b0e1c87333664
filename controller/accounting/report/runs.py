"""What a report says of one run besides its ledger rows: tokens, hardware, grams per token.

Invariant: an unknown figure is None; tokens are those between the month's borders, so months add up
to the run.
"""

from datetime import datetime, timedelta

from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow

UG = 1_000_000
HOUR_S = 3600.0
BILLION = 1e9
APART = timedelta(hours=1)
"""Between marks further apart than this the run's progress is unknown, unless it stood still."""


def tokens_between(journal: Journal, run: RunRow, start: datetime, end: datetime) -> int | None:
    """Give the tokens trained in [start, end); None if the progress at a border is unknown.

    Marks are made once a minute, so a border may be off by a minute's training.
    """
    ended = run.finished_at or run.last_seen_at
    marks = [(each.at, each.tokens) for each in journal.ledger.token_marks(run.run)]
    marks.append((max(ended, run.registered_at), run.tokens))

    def at(moment: datetime) -> int | None:
        before = [each for each in marks if each[0] <= moment] or marks[:1]
        after = [each for each in marks if each[0] > moment] or marks[-1:]
        near = after[0][0] - before[-1][0] <= APART
        return before[-1][1] if near or before[-1][1] == after[0][1] else None

    first, last = at(start), at(end)
    return None if first is None or last is None else max(0, last - first)


def embodied_ug(run: RunRow, gpu_s: float) -> int | None:
    """Give the embodied micrograms of the GPU time of a run; None: its catalogue has no rate."""
    catalogue = run.catalogue
    if catalogue is None or not catalogue.embodied_g_per_gpu_hour:
        return None
    return round(catalogue.embodied_g_per_gpu_hour * gpu_s / HOUR_S * UG)


def sci_g(
    carbon_ug: int | None, embodied: int | None, tokens: int | None, unpriced_mj: int
) -> float | None:
    """Give SCI = (E x I + M) / R in grams per 10^9 tokens.

    None while a part is unknown, and where its grams are in several signals.
    """
    if carbon_ug is None or embodied is None or not tokens or unpriced_mj:
        return None
    return (carbon_ug + embodied) / UG / (tokens / BILLION)
