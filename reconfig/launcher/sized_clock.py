"""An own clock of a supervisor with several hosts: its next launch may have another size.

The launch book says which size is asked for, and which one began. Invariant: a supervisor that is
started anew, after any crash, begins in the old size or in the new one, never in one in which the
newest checkpoint's ranks, or the ordered ones, have no place.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from wattmesh.reconfig.launch.folder import RunFolder, read_json
from wattmesh.reconfig.launcher import launch_book
from wattmesh.reconfig.launcher.contract import HeldLaunch, HeldState, NextLaunch
from wattmesh.reconfig.launcher.hosts.launcher import LaunchSize, size_of
from wattmesh.reconfig.launcher.launch_book import (
    BookedState,
    LaunchBook,
    LaunchRecord,
    Records,
)
from wattmesh.reconfig.launcher.own_clock import OwnClock
from wattmesh.reconfig.wire.messages import SWITCH_ID_KEY

OPEN = (BookedState.ASKED, BookedState.HELD)
OVER = {BookedState.WITHDRAWN: HeldState.WITHDRAWN, BookedState.BEGUN: HeldState.STARTED}


class SizedClock(OwnClock):
    """Holds one launch, of any size that the hosts allow."""

    resizes = True

    def __init__(
        self,
        folder: RunFolder,
        hosts: int,
        per_host: int,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Hold nothing.

        Args:
            folder: the run's.
            hosts: how many there are.
            per_host: how many ranks each of them takes.
            now: gives the wall clock.
        """
        super().__init__(now)
        self._folder, self._book = folder, LaunchBook(folder)
        self._hosts, self._per_host = hosts, per_host
        self._name = f"{hosts} hosts with {per_host} ranks"

    def hold(self, following: NextLaunch) -> HeldLaunch:
        """Hold a launch instead of any other; one that was withdrawn, or has begun, stays so.

        Raises:
            InputInvalid: its ranks do not divide among the hosts.
            SourceUnavailable: the launch book cannot be written.
        """
        size_of(following.ranks, self._hosts, self._per_host)
        begins_at = following.begins_at
        record = LaunchRecord(
            key=following.key,
            run=following.run,
            ranks=following.ranks,
            state=BookedState.HELD,
            begins_at=begins_at.isoformat() if begins_at else None,
            asked_by=self._name,
        )

        def asked(records: Records) -> tuple[Records, LaunchRecord | None]:
            after = launch_book.ask(records, record)
            return after, launch_book.find(after, following.key)

        found = self._book.change(asked)
        over = OVER.get(found.state) if found is not None else None
        if over is not None:
            super().withdraw(following.key)
            return HeldLaunch(key=following.key, name=f"the launch of {following.key}", state=over)
        return super().hold(following)

    def withdraw(self, key: str) -> bool:
        """Let go of a held launch.

        Raises:
            SourceUnavailable: the launch book cannot be written.
        """
        super().withdraw(key)
        return self._book.change(lambda records: launch_book.withdraw(records, key))

    def begin(self) -> LaunchSize:
        """Return how large the launch is that begins now; none that was held is held any more.

        Raises:
            SourceUnavailable: the launch book cannot be written.
        """
        asked = read_json(self._folder.next_file) or {}
        needed = self._needed()

        def begun(records: Records) -> tuple[Records, int]:
            following = self._following(records, asked)
            if following is not None:
                following = replace(following, state=BookedState.BEGUN, begun_by=self._name)
                others = tuple(each for each in records if each.key != following.key)
                return (*launch_book.withdraw_all(others)[0], following), following.ranks
            last = next((each for each in reversed(records) if self._began(each)), None)
            full = self._hosts * self._per_host
            ranks = last.ranks if last is not None and last.ranks >= needed else full
            return launch_book.withdraw_all(records)[0], ranks

        return size_of(self._book.change(begun), self._hosts, self._per_host)

    def _following(self, records: Records, asked: dict[str, Any]) -> LaunchRecord | None:
        """Return the held launch that carries out what the run folder asks of the next one.

        An order that one launch has tried is not tried again: that launch would go back.
        """
        switch = asked.get("switch")
        untried = switch if isinstance(switch, dict) and not asked.get("tries") else {}
        key = untried.get(SWITCH_ID_KEY)
        found = launch_book.find(records, key) if isinstance(key, str) else None
        held = found is not None and found.state in OPEN and found.asked_by == self._name
        return found if held else None

    def _began(self, record: LaunchRecord) -> bool:
        return record.state is BookedState.BEGUN and record.begun_by == self._name

    def _needed(self) -> int:
        """Return how many ranks the newest checkpoint's layout has a place for."""
        try:
            newest = next(iter(self._folder.checkpoints()), None)
        except OSError:
            newest = None
        trainer = read_json(newest / "trainer.json") if newest is not None else None
        header = (trainer or {}).get("header")
        ranks = header.get("ranks") if isinstance(header, dict) else None
        whole = [each for each in ranks if type(each) is int] if isinstance(ranks, list) else []
        return max(whole, default=0) + 1
