"""The daemon killed at every durable write of each launcher act: one order, and no run lost.

A real daemon and its journal; the job is a script that says what a hook and a launcher say, each
message until it is answered. tests/slurm/test_daemon.py kills a daemon that moves a real job.
"""

import http.client
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.builders import messages
from tests.builders.messages import A, B
from tests.daemon.process import Answer, DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.catalogue import PAUSED
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import RESIZES, SUSPENDS, Finish, Order, Orders, SwitchMode

PATIENCE_S = 180.0
CATALOGUE = messages.CATALOGUE.replace('"parked"', '"released"').replace(
    "[switch]", "[switch]\nreacquire_s = 600"
)
SETTINGS = """
[policy]
longest_sleep_s = 7200
[runs.llama-8b]
catalogue = "{folder}/catalogue.toml"
baseline = "A"
deadline_after_s = 864000
"""
LEAVING = (SwitchState.ANNOUNCED, SwitchState.CHECKPOINTING, SwitchState.STOPPING)
ARRIVING = (
    *(SwitchState.LAUNCHING, SwitchState.LOADED),
    *(SwitchState.VERIFIED, SwitchState.CONFIRMED),
)


class Site:
    """One journal, and the daemons that follow each other over it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """Start the first one."""
        self.folder, self._stack = folder, stack
        self.armed = folder / "armed"
        self.between: Callable[[], None] = lambda: None
        (folder / "catalogue.toml").write_text(CATALOGUE)
        self.daemon = self._begin()

    def _begin(self) -> DaemonProcess:
        more = SETTINGS.format(folder=self.folder)
        begun = daemon(self.folder, more, module="tests.daemon.dying", ARMED=str(self.armed))
        return self._stack.enter_context(begun)

    def say(self, method: str, target: str, body: Any = None) -> Answer:
        """Say one thing until it is answered; a daemon that died is followed by another."""
        found: list[Answer] = []

        def answered() -> bool:
            try:
                answer = (
                    self.daemon.get(target) if method == "GET" else self.daemon.post(target, body)
                )
            except (OSError, http.client.HTTPException):
                self._follow()
                return False
            if answer.status == 503:  # the dead one leads, for as long as its lease lasts
                time.sleep(0.1)
                return False
            found.append(answer)
            return True

        wait_for(answered, f"an answer to {method} {target}", PATIENCE_S)
        assert found[0].status == 200, (target, body, found[0].body)
        return found[0]

    def _follow(self) -> None:
        assert self.daemon.process.wait(PATIENCE_S) == -9, self.daemon.log[-4000:]
        self.between()
        self.daemon = self._begin()


@contextmanager
def sites(folder: Path) -> Iterator[Site]:
    """Run daemons over a folder."""
    with ExitStack() as stack:
        yield Site(folder, stack)


@dataclass(slots=True)
class Job:
    """A run as its hook and its launcher speak for it."""

    site: Site
    run: str = field(default_factory=lambda: str(uuid.uuid4()))
    attempt: int = 0
    step: int = 0
    taken: list[Order] = field(default_factory=list)

    def tell(self, call: str, body: Mapping[str, Any]) -> None:
        """Say one thing of the newest launch."""
        which = {
            "run": self.run,
            "incarnation": f"{self.run[:8]}-{self.attempt}",
            "attempt": self.attempt,
        }
        self.site.say("POST", f"/v1/runs/{self.run}/{call}", {**body, **which})

    def launch(self, layout: Any = A) -> None:
        """Let a launch register."""
        self.attempt += 1
        size = layout.world_size
        body = messages.register(
            run=self.run,
            layout=layout,
            ranks=tuple(range(size)),
            world_size=size,
            supersedes=f"{self.run[:8]}-{self.attempt - 1}" if self.attempt > 1 else None,
            capabilities=("in_place", "parking", "restart", SUSPENDS, RESIZES),
            step=self.step,
            tokens=100 * self.step,
            scheduler_key=f"slurm:{self.attempt}",
        )
        self.tell("register", body)

    def train(self, layout: Any = A) -> None:
        """Report three steps."""
        for _ in range(3):
            self.step += 1
            body = messages.progress(
                seq=self.step,
                step=self.step,
                tokens=100 * self.step,
                layout=layout,
                ranks=tuple(range(layout.world_size)),
            )
            self.tell("progress", body)

    def wish(self, point: str) -> None:
        """Order a point, as an operator does."""
        body = {"point": point, "reason": "the test"}
        self.site.say("POST", f"/v1/runs/{self.run}/switch", body)

    def take(self, mode: SwitchMode) -> Order:
        """Ask for orders until there is one; remember those that are carried out."""
        found: list[Order] = []

        def ordered() -> bool:
            answer = self.site.say("GET", f"/v1/runs/{self.run}/order?wait=2")
            found.extend(filter(None, [Orders.from_json(answer.body).order]))
            return bool(found)

        wait_for(ordered, f"an order to {mode}", PATIENCE_S)
        assert found[-1].mode is mode
        self.taken.append(found[-1])
        self.step = max(self.step, found[-1].not_before_step)  # the boundary that it is for
        return found[-1]

    def move(self, order: Order, *states: SwitchState, layout: Any = None) -> None:
        """Report states of a switch."""
        for state in states:
            final = state is SwitchState.CONFIRMED
            body = messages.transition(
                order.switch_id,
                order.epoch,
                state,
                run=self.run,
                step=self.step,
                layout=layout if final else None,
                evidence={"total_s": 2.0} if final else {},
            )
            self.tell("transitions", body)

    def leave(self, reason: str, **more: Any) -> None:
        """Let the launch end."""
        message = Finish(
            run=self.run,
            incarnation="",
            attempt=0,
            step=self.step,
            tokens=100 * self.step,
            reason=reason,
            left_at=datetime.now(UTC).isoformat(),
            **more,
        )
        self.tell("finish", message.to_json())

    def shown(self) -> dict[str, Any]:
        """The run as the screens have it."""
        runs = self.site.say("GET", "/v1/status").body["runs"]
        return next(each for each in runs if each["run"] == self.run)

    def wait_at(self, point: str, state: str) -> None:
        """Wait until it is there, and nothing more is ordered."""

        def there() -> bool:
            time.sleep(0.1)  # each look costs the daemon more than a cycle
            shown = self.shown()
            return (shown["point"], shown["state"], shown["switch"]) == (point, state, None)

        try:
            wait_for(there, f"{state} at {point}", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{self.shown()}\n{self.site.daemon.log[-3000:]}"
            ) from error


def in_an_hour() -> str:
    """When a held launch may begin."""
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()


def resize(job: Job) -> None:
    """Carry out an order to another size, as a launcher does that holds the next launch."""
    job.wish("B")
    order = job.take(SwitchMode.RESIZE)
    job.move(order, *LEAVING)
    job.leave("restart", wakes_at=in_an_hour(), held_as="Slurm job 8, or Slurm job 7")
    job.launch(B)
    job.move(order, *ARRIVING, layout=B)
    job.train(B)
    job.wait_at("B", "live")


def suspend(job: Job) -> None:
    """Carry out an order to sleep."""
    job.wish(PAUSED)
    order = job.take(SwitchMode.SUSPEND)
    job.move(order, *LEAVING, SwitchState.CONFIRMED)
    job.leave("suspended", wakes_at=in_an_hour(), held_as="Slurm job 9")
    job.wait_at("B", "asleep")


def resume(job: Job) -> None:
    """Carry out an order to wake."""
    job.wish("B")
    order = job.take(SwitchMode.RESUME)
    job.launch(B)
    job.move(order, *ARRIVING, layout=B)
    job.train(B)
    job.wait_at("B", "live")


ACTS: Mapping[SwitchMode, Callable[[Job], None]] = {
    SwitchMode.RESIZE: resize,
    SwitchMode.SUSPEND: suspend,
    SwitchMode.RESUME: resume,
}

DEATHS: Mapping[SwitchMode, tuple[str, ...]] = {
    # Durable writes: the wish, the order, the wish is done with, announced, checkpointing,
    # stopping, left, registered, launching, loaded, verified, confirmed. What is durable before
    # a write is so after the one before; only who was told of it differs.
    SwitchMode.RESIZE: (*("before:2", "before:7"), *(f"after:{each}" for each in range(1, 13))),
    # The wish, the order, announced, checkpointing, stopping, confirmed, left.
    SwitchMode.SUSPEND: tuple(f"after:{each}" for each in range(1, 8)),
    # The wish, the order, the wish is done with, registered, launching, loaded, verified,
    # confirmed.
    SwitchMode.RESUME: tuple(f"after:{each}" for each in range(1, 9)),
}


def carry_out(job: Job, mode: SwitchMode, dies: str | None) -> None:
    """Let a run do an act whose daemon dies at a write, if any."""
    died = job.site.armed.with_suffix(".died")
    if dies is not None:
        job.site.armed.write_text(dies)
    ACTS[mode](job)
    if dies is not None:
        assert died.exists(), f"{mode} {dies}: nobody died"
        died.unlink()


def judge(folder: Path, job: Job, what: object) -> None:
    """Read what the journal says: each order was carried out, once, and there is no other."""
    journal = Journal.open(f"sqlite:///{folder}/journal.db")
    try:
        row = journal.runs.find(job.run, datetime.now(UTC))
        assert row is not None
        history = journal.switches.history(job.run)[::-1]
        told = [(each.order.mode, each.state, each.requested_by) for each in history]
        modes = [each.mode for each in job.taken]
        assert told == [(mode, SwitchState.CONFIRMED, "operator") for mode in modes], (what, told)
        assert [each.switch_id for each in history] == [each.switch_id for each in job.taken], what
        known = (row.attempt, row.layout, row.frozen, row.outage_from, row.finish_reason)
        assert known == (job.attempt, B, "", None, "done"), (what, known)
        launches = journal.stays.launches(job.run)
        assert [each.ours for each in launches[:-1]] == [True] * (job.attempt - 1), what
    finally:
        journal.close()


def test_whatever_write_a_daemon_is_killed_at_each_act_is_carried_out_once(tmp_path: Path) -> None:
    """Another size, asleep, awake; at each write the next daemon goes on with the same order.

    All in one journal: the daemon that follows the one that died serves the next act, and dies.
    """
    jobs: list[tuple[Job, object]] = []
    with sites(tmp_path) as site:
        for deaths in zip_longest(*DEATHS.values()):
            job = Job(site)
            jobs.append((job, deaths))
            job.launch()
            job.train()
            last = max(number for number, dies in enumerate(deaths) if dies is not None)
            for mode, dies in tuple(zip(DEATHS, deaths, strict=True))[: last + 1]:
                carry_out(job, mode, dies)
            job.leave("done")
    for job, plan in jobs:
        judge(tmp_path, job, plan)


def test_a_daemon_that_forgets_its_order_would_be_seen(tmp_path: Path) -> None:
    """Sabotaged twin: between two daemons the row of an order that was begun is gone."""
    with sites(tmp_path) as site:
        job = Job(site)
        job.launch()
        job.train()

        def forget() -> None:
            with closing(sqlite3.connect(tmp_path / "journal.db")) as journal, journal:
                journal.execute("DELETE FROM switches")

        site.between = forget
        with pytest.raises(AssertionError, match="has no switch"):
            carry_out(job, SwitchMode.RESIZE, "after:6")
