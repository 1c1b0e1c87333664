"""Which phase a launch is in, in the words of its heartbeat.

Global rank 0 reports for the launch: its own phase, or the leader's while rank 0 is parked.
"""

from contextlib import suppress

from wattmesh.reconfig.launch.failures.bounded import within
from wattmesh.reconfig.launch.failures.deadlines import Phase
from wattmesh.reconfig.launch.failures.watchdog import RankWatchdog
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.wire.messages import RunPhase

STORE_LIMIT_S = 1.0
"""How long a read of the launch's store may take: it hangs when its host is lost."""

_IN_A_GENERATION = {
    Phase.TRAIN: RunPhase.TRAINING,
    Phase.PARKED: RunPhase.PARKED,
    Phase.AGREE: RunPhase.CHECKPOINTING,
    Phase.SAVE: RunPhase.CHECKPOINTING,
}


def run_phase(phase: Phase, *, first: bool, moving: bool) -> RunPhase:
    """Translate a rank's phase.

    Args:
        phase: what the rank is doing.
        first: whether no generation of this launch has trained yet.
        moving: whether the rank is working on a generation that does not train yet.
    """
    if moving or phase not in _IN_A_GENERATION:
        return RunPhase.STARTING if first else RunPhase.SWITCHING
    return _IN_A_GENERATION[phase]


class LaunchPhase:
    """Reads the phase, for one thread."""

    def __init__(self, launch_store: LaunchStore, watchdog: RankWatchdog) -> None:
        """Read this rank's phase from `watchdog`, and the leader's through `launch_store`."""
        self._launch_store = launch_store
        self._watchdog = watchdog
        self._apart: LaunchStore | None = None

    def read(self) -> str:
        """Return the launch's phase now; takes `STORE_LIMIT_S` at most."""
        watch, trained = self._watchdog.watch, self._watchdog.trained
        if watch.phase is Phase.PARKED:
            # This rank waits for the generation after the one that trains.
            return within(STORE_LIMIT_S, lambda: self._of_leader(watch.generation - 1), _PARKED)
        return run_phase(
            watch.phase,
            first=trained == 0 and watch.generation <= 1,
            moving=watch.phase is not Phase.TRAIN and watch.generation > trained,
        )

    def _of_leader(self, number: int) -> str:
        """Return the phase of generation `number`, which trains without this rank."""
        with suppress(RuntimeError, ValueError):
            if self._apart is None:
                self._apart = self._launch_store.separate(STORE_LIMIT_S)
            generation = self._apart.generation(number)
            said = self._apart.peek(f"phase/{generation.leader}") if generation else None
            if said:
                phase = Phase(str(said).partition(" ")[0])
                return run_phase(phase, first=number <= 1, moving=False)
        return _PARKED


_PARKED: str = RunPhase.PARKED
