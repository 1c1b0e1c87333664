"""The rows of the safety matrix: a state of a GPU, what vanishes, what brings it back, how soon.

docs/safety.md has the same rows (a test compares them); tests/actuator/test_matrix.py runs them,
and `benchmarks.safety` prints them with their measured seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.safety import cases
from benchmarks.safety.node import Node

ECONOMY, OBLIGATION, BOTH = "economy lease", "obligation", "both leases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row.

    Attributes:
        within: the seconds that docs/safety.md promises, in words.
        run: does it on a node, and gives the seconds that it took.
    """

    state: str
    vanishes: str
    brings_back: str
    within: str
    run: Callable[[Node], float]

    @property
    def name(self) -> str:
        """Name the row."""
        return self.run.__name__.replace("_", "-")

    @property
    def line(self) -> str:
        """Give the row as docs/safety.md has it, but for the test."""
        return f"| {self.state} | {self.vanishes} | {self.brings_back} | {self.within} |"


CASES = (
    Case(
        state=ECONOMY,
        vanishes="the controller, its database, or the network",
        brings_back="its lease ends",
        within="`lease_s` + 1 s, and 50 s of steps under load",
        run=cases.controller_gone,
    ),
    Case(
        state=ECONOMY,
        vanishes="the agent, killed",
        brings_back="its lease ends",
        within="`lease_s` + 1 s, and 50 s of steps under load",
        run=cases.agent_gone,
    ),
    Case(
        state=ECONOMY,
        vanishes="the actuator, killed",
        brings_back="ExecStopPost, from the journal",
        within="2 s",
        run=cases.actuator_gone,
    ),
    Case(
        state=ECONOMY,
        vanishes="the actuator, killed, and its ExecStopPost",
        brings_back="its next start, from the journal",
        within="3 s",
        run=cases.actuator_gone_and_back,
    ),
    Case(
        state=ECONOMY,
        vanishes="the actuator, SIGTERM",
        brings_back="ExecStopPost, from the journal",
        within="2 s",
        run=cases.stopped_by_hand,
    ),
    Case(
        state=BOTH,
        vanishes="controller, agent and actuator, killed",
        brings_back="`wattmesh restore-all`; the obligation holds",
        within="2 s",
        run=cases.all_gone,
    ),
    Case(
        state=OBLIGATION,
        vanishes="controller, agent and actuator, killed",
        brings_back="nothing lifts it; the next start keeps it",
        within="0 s",
        run=cases.obligation_outlives_all,
    ),
    Case(
        state=OBLIGATION,
        vanishes="controller and agent, killed; the actuator, started anew",
        brings_back="its own end",
        within="1 s after `until`, and 50 s of steps under load",
        run=cases.obligation_ends,
    ),
    Case(
        state=BOTH,
        vanishes="controller and agent, replaced by newer ones",
        brings_back="nothing lifts the obligation; the new epoch is obeyed",
        within="0 s",
        run=cases.controller_upgraded,
    ),
    Case(
        state=ECONOMY,
        vanishes="a controller that was replaced wishes on",
        brings_back="it is refused by its epoch, and its lease ends",
        within="`lease_s` + 1 s, and 50 s of steps under load",
        run=cases.old_controller,
    ),
    Case(
        state=ECONOMY,
        vanishes="the run's last process",
        brings_back="the actuator's next look",
        within="2 s",
        run=cases.job_ends,
    ),
    Case(
        state=ECONOMY,
        vanishes="the run's process; another one comes",
        brings_back="the actuator's next look; lowered again for the new one",
        within="2 s",
        run=cases.job_is_requeued,
    ),
    Case(
        state=ECONOMY,
        vanishes="the run's process, never reaped and still listed",
        brings_back="the actuator's next look",
        within="2 s",
        run=cases.job_is_a_zombie,
    ),
    Case(
        state=ECONOMY,
        vanishes="exclusive use: a process that is not the run's",
        brings_back="the actuator's next look, on all GPUs of the run",
        within="2 s",
        run=cases.stranger_comes,
    ),
    Case(
        state=ECONOMY,
        vanishes="our limit: somebody else sets another",
        brings_back="theirs stays and is reported; ours goes",
        within="2 s",
        run=cases.foreign_limit,
    ),
    Case(
        state=ECONOMY,
        vanishes="our lock: somebody else locks higher",
        brings_back="theirs stays and is reported; ours goes after three looks",
        within="3 s",
        run=cases.foreign_lock,
    ),
    Case(
        state=ECONOMY,
        vanishes="our lock: somebody else locks lower",
        brings_back="theirs stays and is reported; the rest of ours goes after three looks",
        within="3 s",
        run=cases.foreign_lower_lock,
    ),
    Case(
        state=ECONOMY,
        vanishes="the GPU, and the job meanwhile",
        brings_back="the first look that it answers; the others at once",
        within="2 s after it is back; 60 s if the driver must be initialised anew",
        run=cases.gpu_lost,
    ),
    Case(
        state=ECONOMY,
        vanishes="the right to set",
        brings_back="tried again every second",
        within="2 s after it is back",
        run=cases.no_permission,
    ),
    Case(
        state=ECONOMY,
        vanishes="everything that was set: the driver is loaded anew",
        brings_back="its energy counter tells: set anew, and given back with the job",
        within="2 s",
        run=cases.driver_reloaded,
    ),
    Case(
        state=ECONOMY,
        vanishes="one GPU's driver",
        brings_back="the others at once, that one when it answers",
        within="2 s after it answers",
        run=cases.driver_hangs,
    ),
    Case(
        state=ECONOMY,
        vanishes="cooling: the board slows itself down",
        brings_back="nothing is lowered or raised; given back with the job",
        within="2 s",
        run=cases.board_in_trouble,
    ),
    Case(
        state=ECONOMY,
        vanishes="exclusive use: MIG is turned on",
        brings_back="the actuator's next look",
        within="2 s",
        run=cases.made_shared,
    ),
)
