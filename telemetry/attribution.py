"""Which run a GPU works for, from what live incarnations registered. Pure.

Invariant: every GPU belongs to exactly one line; one that two runs claim is `unattributed`, so that
no joule is ever charged twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A live incarnation and the GPUs its ranks registered (parked ranks too: they hold theirs)."""

    run: str
    incarnation: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Whom a GPU's energy is booked to. `line`: run | idle | unattributed."""

    run: str = ""
    incarnation: str = ""
    line: str = "idle"


IDLE = Claim()
DISPUTED = Claim(line="unattributed")


def attribute(holders: Iterable[Holder]) -> Mapping[str, Claim]:
    """Give the claim on every GPU that somebody registered; others are `IDLE`.

    Of two incarnations of one run the later one in `holders` stands.
    """
    claims: dict[str, Claim] = {}
    for holder in holders:
        for gpu in filter(None, holder.gpus):
            mine = Claim(run=holder.run, incarnation=holder.incarnation, line="run")
            claims[gpu] = mine if claims.get(gpu, mine).run == holder.run else DISPUTED
    return claims
