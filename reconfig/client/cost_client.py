"""The thread that carries expert-tokens to the daemon and expert costs back, on global rank 0.

It meets the ranks in the launch's store only: the leader leaves there what all ranks counted at a
save step, and finds there what the daemon said last. Invariant: nothing here raises into training
or blocks it. If the daemon is absent, slow, older, or answers nonsense, no costs arrive, and what
the ranks agreed on before stays.
"""

import logging
import re
import threading
import time
from typing import Any

from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.wire.experts import STALE_S, ExpertCostScores, ExpertTokenReport
from wattmesh.reconfig.wire.link import DaemonLink

log = logging.getLogger(__name__)

EVERY_S = 15.0
CALL_LIMIT_S = 5.0
STORE_LIMIT_S = 5.0

TOKENS_KEY, COSTS_KEY = "experts/tokens", "experts/costs"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class UnusedCosts:
    """Says once, in the job's log, that what the daemon says is not used."""

    def __init__(self) -> None:
        """Begin with all in use."""
        self._kind = ""

    def say(self, why: str) -> None:
        """Take in why it is not used; "" where it is."""
        kind = _NUMBER.sub("", why)  # ages and versions differ in each answer
        if kind and kind != self._kind:
            log.warning("expert costs are not used, and what was agreed stays: %s", why)
        self._kind = kind


class CostClient:
    """Asks for costs every few seconds, and posts a new count within one."""

    def __init__(self, link: DaemonLink, launch_store: LaunchStore, run: str) -> None:
        """Prepare; `start` begins the thread.

        Args:
            link: the connection to the daemon.
            launch_store: the launch's store; a connection of the thread's own is opened from it.
            run: whose costs.
        """
        self._link = link
        self._shared = launch_store
        self._run = run
        self._every_s = EVERY_S
        self._posted = 0
        self._heard: tuple[float, ExpertCostScores] | None = None
        self._unused = UnusedCosts()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="wattmesh-experts", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for a call under way, `CALL_LIMIT_S` at most."""
        self._stop.set()
        self._thread.join(CALL_LIMIT_S)

    def _work(self) -> None:
        store: LaunchStore | None = None
        asked_s = -self._every_s
        while not self._stop.is_set():
            try:
                store = store or self._shared.separate(STORE_LIMIT_S)
                self._post(store)
                if time.monotonic() - asked_s >= self._every_s:
                    asked_s = time.monotonic()
                    self._ask()
                    self._leave(store)
            except Exception as error:
                # Whatever it is, training needs nothing of this thread.
                log.debug("expert costs: %s", error)
            self._stop.wait(min(1.0, self._every_s))

    def _post(self, store: LaunchStore) -> None:
        """Post what was counted last, once the daemon takes it; newer counts replace it."""
        told = store.peek(TOKENS_KEY)
        if not isinstance(told, dict) or told["report"]["seq"] <= self._posted:
            return
        attempt = store.peek("attempt")
        age_s = max(0.0, time.time() - told["counted_at_s"])
        report = ExpertTokenReport.from_json(
            {**told["report"], "age_s": age_s, "attempt": attempt or told["report"]["attempt"]}
        )
        path = f"/v1/runs/{self._run}/expert-tokens"
        answer = self._link.call("POST", path, report.to_json(), CALL_LIMIT_S)
        if answer.accepted:
            self._posted = report.seq

    def _ask(self) -> None:
        """Hear what the daemon says now; what is no answer leaves the one before to grow old."""
        path = f"/v1/runs/{self._run}/expert-costs"
        try:
            answer = self._link.call("GET", path, None, CALL_LIMIT_S)
        except WattmeshError as error:
            log.debug("expert costs: %s", error)
            return
        if not answer.accepted:
            return
        try:
            costs = ExpertCostScores.from_json(answer.body)
            self._heard = (time.monotonic(), costs)
            if costs.age_s <= STALE_S:
                self._unused.say("")
        except InputInvalid as error:
            self._unused.say(f"the daemon's answer is malformed: {error}")

    def _leave(self, store: LaunchStore) -> None:
        """Leave the newest answer for the leader, with its age; none once it is stale."""
        left: dict[str, Any] | None = None
        if self._heard is not None:
            at_s, costs = self._heard
            age_s = costs.age_s + time.monotonic() - at_s
            if age_s <= STALE_S:
                left = {**costs.to_json(), "age_s": age_s}
            elif costs.version != 0:
                self._unused.say(f"the newest that the daemon said are older than {STALE_S:g} s")
        store.put(COSTS_KEY, left)
