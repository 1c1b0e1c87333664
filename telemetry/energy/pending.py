"""Amounts that are not booked yet, by ledger row, and the rows as they were last booked.

Invariant: an amount is added to a row once, and is kept until the book has acknowledged that row.
Rows are absolute, so a row whose commit was not answered may be booked again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from wattmesh.telemetry.energy.attribution import EnergyClaim
from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid, share
from wattmesh.telemetry.energy.meter import EnergyPiece
from wattmesh.telemetry.readings import SPREAD, merged_quality

MICROSECOND = timedelta(microseconds=1)

LONG_US = 10_000_000
"""Power cannot be assumed constant over a longer piece."""

Key = tuple[str, str, datetime, str]
"""GPU, run, slot start, line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPart:
    """A part of one GPU's time in one slot under one claim, `length_us` long."""

    key: Key
    slot_end: datetime
    claim: EnergyClaim
    length_us: int
    unobserved_ms: int = 0
    upper_mj: int = 0

    @property
    def most(self) -> bool:
        """Tell whether it covers more than half of its slot."""
        return 2 * self.length_us > (self.slot_end - self.key[2]) // MICROSECOND

    def joined(self, other: "SlotPart") -> "SlotPart | None":
        """Merge with another cell of the same row; None when the rows differ."""
        if (self.key, self.claim) != (other.key, other.claim):
            return None
        return replace(
            self,
            length_us=self.length_us + other.length_us,
            unobserved_ms=self.unobserved_ms + other.unobserved_ms,
            upper_mj=self.upper_mj + other.upper_mj,
        )


def cells(
    piece: EnergyPiece, end: datetime, *, gpu: str, claim: EnergyClaim, grid: SlotGrid
) -> list[SlotPart]:
    """Split a piece that ended at `end` over its slots, with its unobserved time."""
    parts = list(grid.parts(end - piece.length_us * MICROSECOND, end))
    weights = [(until - at) // MICROSECOND for at, until in parts]
    each = zip(
        parts,
        share(piece.length_us, weights),
        share(piece.unobserved_ms, weights),
        share(piece.upper_mj, weights),
        strict=True,
    )
    made = []
    for (at, _), length_us, unobserved_ms, upper_mj in each:
        slot_start, slot_end = grid.slot(at)
        made.append(
            SlotPart(
                key=(gpu, claim.run, slot_start, claim.line),
                slot_end=slot_end,
                claim=claim,
                length_us=length_us,
                unobserved_ms=unobserved_ms,
                upper_mj=upper_mj,
            )
        )
    return made


@dataclass(slots=True)
class Amount:
    """An increment of one row; unobserved time may be negative."""

    claim: EnergyClaim
    slot_end: datetime
    energy_mj: int | None = None
    unobserved_ms: int = 0
    upper_mj: int = 0
    source: str = ""
    qualities: set[str] = field(default_factory=set)


class Pending:
    """The amounts of one sampler that are not booked yet."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._amounts: dict[Key, Amount] = {}
        self._booked: dict[Key, EnergyRow | None] = {}  # None: the book had no such row

    def __len__(self) -> int:
        return len(self._amounts)

    def add(self, where: Iterable[SlotPart], piece: EnergyPiece, *, retract: int = 0) -> None:
        """Distribute a piece over its cells.

        Args:
            where: the cells, in time order.
            piece: the energy of all cells together.
            retract: so many of the first cells are booked as unobserved already; that is undone.
        """
        places = list(where)
        energies = share(piece.energy_mj or 0, [each.length_us for each in places])
        long = sum(each.length_us for each in places) > LONG_US
        several = long and len({each.key for each in places}) > 1
        for index, (cell, energy_mj) in enumerate(zip(places, energies, strict=True)):
            amount = self._amounts.setdefault(
                cell.key, Amount(claim=cell.claim, slot_end=cell.slot_end)
            )
            sign = -1 if index < retract else 1
            amount.unobserved_ms += sign * cell.unobserved_ms
            amount.upper_mj += sign * cell.upper_mj
            if piece.energy_mj is not None:
                amount.energy_mj = (amount.energy_mj or 0) + energy_mj
            amount.source = piece.source or amount.source
            amount.qualities.add(str(piece.quality))
            if several and piece.energy_mj is not None and cell.most:
                amount.qualities.add(SPREAD)
            amount.claim = cell.claim

    def unread(self) -> tuple[datetime, datetime] | None:
        """First and last slot start of the rows that were not read from the book yet."""
        starts = [key[2] for key in self._amounts if key not in self._booked]
        return (min(starts), max(starts)) if starts else None

    def take_booked(self, rows: Iterable[EnergyRow]) -> None:
        """Take the book's rows that `unread` named; amounts are added to them.

        Each row is read once only: after a commit whose answer was lost, reading it again would add
        its amounts twice.
        """
        held = {(row.gpu_uuid, row.run, row.slot_start, row.line): row for row in rows}
        for key in self._amounts:
            self._booked.setdefault(key, held.get(key))

    def rows(self) -> dict[Key, EnergyRow]:
        """Return every changed row, with its amount added."""
        return {
            key: _added(self._booked.get(key), key, amount) for key, amount in self._amounts.items()
        }

    def acknowledged(self, rows: Mapping[Key, EnergyRow]) -> None:
        """Drop what was booked, except rows of the newest slot: those will change again."""
        self._amounts.clear()
        newest = max((key[2] for key in rows), default=None)
        kept = {key: row for key, row in self._booked.items() if newest and key[2] >= newest}
        self._booked = kept | dict(rows)

    def forget(self, gpus: Iterable[str]) -> None:
        """Drop the amounts of devices whose booked counters cover them."""
        gone = set(gpus)
        self._amounts = {key: each for key, each in self._amounts.items() if key[0] not in gone}
        self._booked = {key: each for key, each in self._booked.items() if key[0] not in gone}


def _added(row: EnergyRow | None, key: Key, amount: Amount) -> EnergyRow:
    claim = amount.claim
    if row is None:
        row = EnergyRow(
            gpu_uuid=key[0],
            run=key[1],
            incarnation=claim.incarnation,
            slot_start=key[2],
            slot_end=amount.slot_end,
            energy_mj=None,
            unobserved_ms=0,
            upper_mj=0,
            source=amount.source,
            quality="",
            line=key[3],
        )
    known = [each for each in (row.energy_mj, amount.energy_mj) if each is not None]
    return replace(
        row,
        energy_mj=sum(known) if known else None,
        unobserved_ms=row.unobserved_ms + amount.unobserved_ms,
        upper_mj=row.upper_mj + amount.upper_mj,
        incarnation=claim.incarnation or row.incarnation,
        source=amount.source or row.source,
        quality=merged_quality({row.quality, *amount.qualities}),
    )
