"""A supervisor's part in sleep and in another size: it has the next launch held, and waits.

Invariant: a launch that was asked for and is not wanted any more is withdrawn before another one
begins; what cannot be asked or read wakes the run rather than letting it sleep.
"""

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from wattmesh.errors import WattmeshError
from wattmesh.reconfig.client import waking
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.asleep import AsleepNote, HoldAnswer, HoldRequest
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.contract import HeldState, LaunchQueue, NextLaunch
from wattmesh.reconfig.launcher.own_clock import OwnClock
from wattmesh.reconfig.launcher.way_back import WayBack

LOOK_S = 0.5
"""How often the run folder is looked at for a request."""

ASK_S = 5.0
"""How often the daemon is asked whether the run is to wake."""

DUE_S = 0.2

LATE = timedelta(minutes=15)
"""How much later than asked a launch may begin before the daemon calls its run lost by default
(`loops.waking_s`)."""

BACK = ".back"
"""What the key ends with of the launch that begins if the ordered one does not."""


class Sleeper:
    """Has the next launch of one run held."""

    def __init__(
        self,
        folder: RunFolder,
        queue: LaunchQueue | None,
        stop: threading.Event,
        say: Callable[[str], None],
        clock: OwnClock | None = None,
    ) -> None:
        """Begin with nothing held.

        Args:
            folder: the run's folder.
            queue: holds launches and starts them; None: this supervisor does.
            stop: set when this supervisor is asked to stop.
            say: called with sentences for people.
            clock: holds launches that this supervisor starts; None: one that knows no other size.
        """
        self._folder = folder
        self._clock = clock or OwnClock()
        self._queue: LaunchQueue = queue or self._clock
        self._stop = stop
        self._say = say
        self._asked: HoldRequest | None = None
        self._over = ""
        self._look_at_s = 0.0

    def serve(self) -> None:
        """Answer the job's request while its launch runs, or note that it was taken back."""
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        request = asleep.read(self._folder.hold_file, HoldRequest)
        if self._asked is not None and (request is None or request.key != self._asked.key):
            self.let_go()
        # A request that was slept for lies there until the next launch has begun.
        if request is not None and self._asked is None and request.key != self._over:
            self._asked = request
            self._answer(request)

    @property
    def queued(self) -> bool:
        """Whether a launcher, not this supervisor, starts what is held."""
        return self._queue is not self._clock

    @property
    def resizes(self) -> bool:
        """Whether the launch that is held has another size, and begins once this one has ended."""
        return self._asked is not None and self._asked.begins_at is None

    def let_go(self) -> None:
        """Withdraw what is held; a launch that is not known to be withdrawn is told of."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._withdraw(asked)

    def go_back(self, way: WayBack) -> bool:
        """Have a launch of the size before held, which begins once this job has ended.

        Returns:
            Whether it is held, so that this supervisor may end. May be repeated.
        """
        following = NextLaunch(key=way.key, run=way.run, ranks=way.ranks)
        try:
            held = self._queue.hold(following)
        except WattmeshError as error:
            self._say(f"the run cannot go back to {way.ranks} ranks: {error}")
            return False
        if held.state is not HeldState.HELD:
            self._say(f"the run cannot go back to {way.ranks} ranks: {held.name} is {held.state}.")
            return False
        self._say(f"the run goes back to {way.ranks} ranks: {held.name}.")
        return True

    def sleep(self, step: int) -> bool:
        """Wait until the next launch is due; False: it is not this supervisor's to start."""
        asked, self._asked = self._asked, None
        if asked is None:
            return True
        self._over, until = asked.key, asked.wakes_at or "once this one has ended"
        waking.tell_what_is_left(self._folder)
        if self.queued:
            if any(self._is_gone(each.key) for each in _launches(asked)):
                self._say(f"the held launch of {asked.key} is gone: the run goes on here.")
                self._withdraw(asked)
                asleep.awake(self._folder)
                return True
            self._say(f"the run leaves at step {step}; its launcher starts it {until}.")
            return False
        if asked.begins_at is None:
            self._say(f"the run left at step {step} and goes on in {asked.ranks} ranks.")
            return not self._stop.is_set()
        self._say(f"the run sleeps at step {step} and is started again at {until} at the latest.")
        ask_at_s = 0.0
        while not self._clock.due() and not self._stop.wait(DUE_S):
            if time.monotonic() >= ask_at_s:
                if self._ordered():
                    break
                ask_at_s = time.monotonic() + ASK_S
        if self._stop.is_set():
            asleep.awake(self._folder)
            return False
        return True

    def _is_gone(self, key: str) -> bool:
        """Return whether a launch that was held is known not to start any more."""
        try:
            held = self._queue.find(key)
        except WattmeshError:
            return False
        return held is None or held.state is HeldState.WITHDRAWN

    def _ordered(self) -> bool:
        """Return whether the run is to begin now: by an order, or because its note is lost.

        A daemon that was down when the run fell asleep hears of it first.
        """
        note = asleep.read(self._folder.asleep_file, AsleepNote)
        if note is None:
            return True
        waking.tell_what_is_left(self._folder)
        order = waking.resume_order(self._folder, note, resizes=self._clock.resizes)
        if order is None:
            return False
        try:
            waking.begin(self._folder, note, order)
            if max(order.ranks) >= note.launched:
                self._clock.hold(
                    NextLaunch(key=order.switch_id, run=note.run, ranks=len(order.ranks))
                )
        except (OSError, WattmeshError) as error:
            self._say(f"the order to wake at {order.point} cannot be noted ({error}).")
        self._say(f"the run is woken: {order.reason}")
        return True

    def _withdraw(self, asked: HoldRequest) -> None:
        for each in _launches(asked):
            try:
                if not self._queue.withdraw(each.key):
                    self._say(f"the next launch of {each.key} has started already.")
            except WattmeshError as error:
                self._say(f"the held launch of {each.key} may still start: {error}")

    def _answer(self, request: HoldRequest) -> None:
        names, problem = [], ""
        try:
            # The way back first: a launch that is left alone with it trains on sooner or later.
            for following in _launches(request):
                held = self._queue.hold(following)
                names.append(held.name)
                if held.state is not HeldState.HELD:
                    problem = f"{held.name} is {held.state}, not held"
                    break
        except WattmeshError as error:
            problem = str(error)
        held_as = names[-1] if names else ""
        if len(names) > 1:
            held_as += f", or {names[0]}"
        answer = HoldAnswer(key=request.key, held_as=held_as[:255], problem=problem)
        try:
            asleep.write(self._folder.held_file, answer)
        except OSError as error:
            self._say(f"the answer that the next launch is held cannot be written ({error}).")


def _launches(request: HoldRequest) -> list[NextLaunch]:
    """List the launches that a request asks for: the way back first, the ordered one last."""
    back_at = datetime.fromisoformat(request.back_at) if request.back_at else None
    wakes_at = request.begins_at
    ordered = NextLaunch(
        key=request.key,
        run=request.run,
        ranks=request.ranks,
        begins_at=wakes_at,
        begins_by=back_at if wakes_at is None else _late(wakes_at),
    )
    if request.back_ranks is None or back_at is None:
        return [ordered]
    back = NextLaunch(
        key=f"{request.key[:59]}{BACK}",
        run=request.run,
        ranks=request.back_ranks,
        begins_at=back_at,
        begins_by=_late(back_at),
    )
    return [back, ordered]


def _late(at: datetime) -> datetime | None:
    """Return when a launch that is to begin at a moment is of no use any more; None: never."""
    try:
        return at + LATE
    except OverflowError:
        return None
