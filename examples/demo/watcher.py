"""Watches a run of the demo as a person would: it polls the daemon's status.

Invariant: it acts at most twice, as an operator does. It ends the freeze once the run is measured,
and gives one order with a reason, which the daemon may refuse.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from examples.demo import screen
from examples.demo.daemon import DemoDaemon
from examples.demo.plan import DemoPlan
from examples.demo.progress import ProgressPrinter
from wattmesh.errors import WattmeshError

LOOK_S = 0.4


@dataclass(slots=True)
class Watcher:
    """Watches a run as a person would, and acts as its operator at the planned steps.

    `acting`: True for the main run; the control is only watched.
    """

    plan: DemoPlan
    daemon: DemoDaemon
    progress: ProgressPrinter
    acting: bool
    thawed: bool = False
    ordered: bool = False
    sentence: str = ""
    next_s: float = 0.0

    def look(self) -> None:
        """Ask the daemon for its status, at most once per `LOOK_S`."""
        if time.monotonic() < self.next_s:
            return
        self.next_s = time.monotonic() + LOOK_S
        self.daemon.child.check()
        view = self.daemon.status()
        found = view["runs"] if view else []
        if view is None or not found:
            return
        self._tell(view, found[0])
        if not self.acting:
            return
        if not self.thawed:
            if self._may_act(found[0]):
                self._thaw(found[0])
        elif not self.ordered and self._due(found[0]):
            self._order(found[0])

    def _tell(self, view: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        """Show progress; print a new decision to switch as a permanent line."""
        switch = line["switch"]
        if switch is not None and switch["reason"] != self.sentence:
            self.sentence = switch["reason"]
            self.progress.say(f"  step {line['step']:>3}: {self.sentence}")
        self.progress.show(screen.standing(self.plan, view, line, acting=self.acting))

    def _may_act(self, line: Mapping[str, Any]) -> bool:
        """Return whether the run was measured for long enough, and a plan exists or is overdue."""
        if line["step"] < self.plan.act_from_step:
            return False
        return self.daemon.planned(line["run"]) or line["step"] >= self.plan.act_by_step

    def _due(self, line: Mapping[str, Any]) -> bool:
        """Return whether the operator orders now: late in the run, with no switch in progress.

        From `order_at` only at equal ranks; from `order_by` at any layout.
        """
        share = line["step"] / self.plan.steps
        quiet = line["switch"] is None and line["state"] == "live"
        equal = line["ranks"] == self.plan.processes
        return quiet and share >= (self.plan.order_at if equal else self.plan.order_by)

    def _thaw(self, line: Mapping[str, Any]) -> None:
        self.daemon.thaw()
        self.thawed = True
        self.progress.say(
            f"  step {line['step']:>3}: measured where it was submitted; wattmesh acts from here"
        )

    def _order(self, line: Mapping[str, Any]) -> None:
        """Order the further layout as `wattmesh switch` does; the baseline if it is there."""
        self.ordered = True
        there = line["point"] == self.plan.ordered_point
        point = self.plan.baseline if there else self.plan.ordered_point
        try:
            self.daemon.order(line["run"], point, self.plan.order_reason)
        except WattmeshError as error:
            self.progress.say(f"  the operator's order was not taken: {error}")
        else:
            reason = self.plan.order_reason
            self.progress.say(f"  step {line['step']:>3}: an operator orders {point}: {reason}")
