"""Kill the actuator's engine at every line that can matter, and see what the next start leaves.

    python -m tests.actuator.dying FOLDER SCENARIO STRIDE

A process of its own, because it forks: one child lives the scenario and is killed (SIGKILL, by a
trace function) at line n of the functions with side effects; the next child starts anew, and then
gives everything back. For n = 1, 2, ... until a child survives. Prints one JSON object.

Between two side effects nothing changes that outlives the process, so pure functions are passed
over. Files lie in memory where they can: a killed process loses no page, unlike a power cut.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from wattmesh.telemetry.actuator.device import NvmlGpus
from wattmesh.telemetry.actuator.engine import Engine
from wattmesh.telemetry.actuator.journal import ActuatorJournal
from wattmesh.telemetry.actuator.restore import restore_all
from wattmesh.telemetry.actuator.settings import ActuatorMode, ActuatorSettings
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import Desired, LeaseKind, Wish
from wattmesh.telemetry.fake_nvml import FakeNvml

DEADLY = {
    "actuator/journal.py": {"rewrite", "_append", "_undo", "_lock"},
    "actuator/writing.py": {"_carry_out", "_write", "_take_back", "_unwritten"},
    "wattmesh/durable.py": {"write_bytes", "fsync_folder"},
}
FOUND_W = (600.0, 700.0)
"""What an administrator left on GPU 0 before us, and the default on GPU 1."""

RUN = "run-1"
CLAIMS = {RUN: ProcessClaim(uids=frozenset({os.geteuid()}))}
UNTIL = datetime.now(UTC) + timedelta(hours=1)


class World:
    """Two fake GPUs, a journal, and what was acknowledged before the kill."""

    def __init__(self, folder: Path) -> None:
        """Make the GPUs."""
        self.fake = FakeNvml.create(folder / "gpus", gpus=2)
        self.settings = ActuatorSettings(
            mode=ActuatorMode.ENFORCE,
            journal=folder / "journal",
            library=self.fake.library,
            write_every_s=0,
            step_share=1.0,
        )
        self.acknowledged = folder / "acknowledged"

    def reset(self) -> None:
        """Make everything as before the first start."""
        self.fake.reload_driver()
        for gpu, found_w in zip(self.fake.gpus, FOUND_W, strict=True):
            gpu.foreign_limit(found_w)
            gpu.load(1.0)
            gpu.processes([os.getpid()])
        self.settings.journal.unlink(missing_ok=True)
        self.acknowledged.write_text("")

    def uuid(self, index: int) -> str:
        """Name a GPU."""
        return self.fake.gpus[index].uuid

    def state(self) -> list[tuple[float, int | None]]:
        """Give limit and lock of each GPU as they really are."""
        truths = [gpu.truth() for gpu in self.fake.gpus]
        return [(each.requested_limit_w, each.lock_mhz) for each in truths]


def economy(world: World, clock: int, cap: float) -> list[Wish]:
    """Wish the same of both GPUs, for one run."""
    return [
        Wish(
            gpu_uuid=world.uuid(index),
            kind=LeaseKind.ECONOMY,
            holder=RUN,
            clock_mhz=clock,
            cap_w=cap,
            lease_s=600,
        )
        for index in (0, 1)
    ]


def obligation(world: World, cap: float) -> Wish:
    """Cap GPU 0 for an hour."""
    return Wish(
        gpu_uuid=world.uuid(0),
        kind=LeaseKind.OBLIGATION,
        holder="breaker",
        cap_w=cap,
        until=UNTIL,
    )


def live(world: World, *steps: Callable[["Life"], None]) -> None:
    """Start an engine and let it live some steps."""
    with (
        closing(ActuatorJournal.open(world.settings.journal)) as journal,
        closing(NvmlGpus(world.settings.library)) as device,
    ):
        engine = Engine(journal=journal, device=device, settings=world.settings)
        engine.start()
        engine.insist()  # a loaded machine may let a first call run out of time
        for step in steps:
            step(Life(world, engine))


class Life:
    """One engine in its world."""

    def __init__(self, world: World, engine: Engine) -> None:
        """Keep both."""
        self.world, self.engine = world, engine

    def wish(self, *wishes: Wish, epoch: int = 1) -> None:
        """Say what is wished; once it is answered, an obligation must survive."""
        serial = f"{epoch}:{[each.to_json() for each in wishes]}"[:200]
        desired = Desired(node="n1", epoch=epoch, serial=serial, wishes=wishes)
        self.engine.hear(desired, CLAIMS)
        caps = [each.cap_w for each in wishes if each.kind is LeaseKind.OBLIGATION]
        self.world.acknowledged.write_text(json.dumps(caps[0] if caps else None))


def first_writes(life: Life) -> None:
    """Both levers on both GPUs."""
    life.wish(*economy(life.world, 1200, 500))


def both_kinds(life: Life) -> None:
    """An obligation joins, is tightened, and then the economy ends."""
    life.wish(*economy(life.world, 1200, 500), obligation(life.world, 450))
    life.wish(*economy(life.world, 1005, 500), obligation(life.world, 400))
    life.wish(obligation(life.world, 400), epoch=2)


def given_back(life: Life) -> None:
    """Everything is given back on a person's request, obligations too."""
    life.world.acknowledged.write_text("")
    life.engine.restore(obligations=True)


def refused(life: Life) -> None:
    """GPU 1 does not take what it is told, so what GPU 0 took is taken back."""
    life.world.fake.gpus[1].hang(0)
    life.engine._device = Disobedient(life.engine._device, life.world.uuid(1))
    life.engine._writer._device = life.engine._device
    life.wish(*economy(life.world, 1200, 500))


class Disobedient:
    """A device whose one GPU says that it was set and was not, as the v2 setter does."""

    def __init__(self, device: Any, uuid: str) -> None:
        """Spoil one GPU of a device."""
        self._device, self._uuid = device, uuid

    def __getattr__(self, name: str) -> Any:
        """Everything else is the device's."""
        return getattr(self._device, name)

    def set_limit(self, gpu_uuid: str, limit_w: float) -> None:
        """Say nothing and do nothing."""
        if gpu_uuid != self._uuid:
            self._device.set_limit(gpu_uuid, limit_w)


class Late:
    """A journal that is written after the act that it should announce."""

    def __init__(self, journal: Any) -> None:
        """Spoil a journal."""
        self._journal = journal
        self._waiting: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the journal's."""
        return getattr(self._journal, name)

    def hold(self, *held: Any) -> None:
        """Write what should have been written the last time."""
        waiting, self._waiting = self._waiting, held
        self._journal.hold(*waiting)


def careless(life: Life) -> None:
    """The sabotaged twin: acts first, announces afterwards."""
    late: Any = Late(life.engine._writer._journal)
    life.engine._writer._journal = late
    life.wish(*economy(life.world, 1200, 500))


SCENARIOS: dict[str, tuple[tuple[Callable[[Life], None], ...], tuple[Callable[[Life], None], ...]]]
SCENARIOS = {
    "writing": ((), (first_writes,)),
    "both": ((), (both_kinds,)),
    "returning": ((both_kinds,), (given_back,)),
    "starting": ((first_writes,), ()),
    "starting-under-obligation": ((both_kinds,), ()),
    "undoing": ((), (refused,)),
}
SABOTAGED = {"careless": ((), (careless,))}
"""A life that was killed at its end, and the one after it, which is killed at every line."""


def kill_at(line: int) -> None:
    """Let this process die by SIGKILL at the n-th line of a deadly module."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        name = "/".join(frame.f_code.co_filename.rsplit("/", 2)[-2:])
        if frame.f_code.co_name not in DEADLY.get(name, ()):
            return None
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def child(work: Callable[[], None]) -> int:
    """Do work in a child; give its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def dirty(world: World, before: tuple[Callable[[Life], None], ...]) -> None:
    """Live what came before and be killed at its end, so that nothing is given back."""

    def doomed() -> None:
        live(world, *before, lambda _: os.kill(os.getpid(), signal.SIGKILL))

    if before and child(doomed) != signal.SIGKILL:
        raise AssertionError("the life before did not get to its end")


def after_a_start(world: World) -> list[str]:
    """Start anew in a child; say what is not at its baseline nor under its obligation."""
    told = world.acknowledged.read_text()
    must_w = json.loads(told) if told else None
    if child(lambda: live(world)):
        return ["the next start failed"]
    (limit, lock), (other_limit, other_lock) = world.state()
    wrong = []
    if lock or other_lock:
        wrong.append(f"locks stay: {lock}, {other_lock}")
    if other_limit != FOUND_W[1]:
        wrong.append(f"GPU 1 has {other_limit} W")
    if limit not in (FOUND_W[0], 450.0, 400.0):
        wrong.append(f"GPU 0 has {limit} W")
    if must_w is not None and limit > must_w:
        wrong.append(f"GPU 0 has {limit} W under an acknowledged obligation of {must_w} W")
    return wrong


def after_restore_all(world: World) -> list[str]:
    """Give everything back in a child; say what is not as it was found."""
    if child(lambda: tell(restore_all(world.settings, obligations=True))):
        return ["giving back failed"]
    wanted = [(found_w, None) for found_w in FOUND_W]
    return [] if world.state() == wanted else [f"not as found: {world.state()}"]


def tell(returned: list[dict[str, Any]]) -> None:
    """Fail where a GPU could not be given back."""
    if any(each["trouble"] for each in returned):
        raise AssertionError(returned)


def run(folder: Path, name: str, stride: int = 1) -> dict[str, Any]:
    """Kill at every line, or every n-th, of one scenario."""
    world = World(folder)
    before, under_test = {**SCENARIOS, **SABOTAGED}[name]
    found: list[str] = []
    marks = 0
    for line in range(1, 10_000, stride):
        world.reset()
        dirty(world, before)
        marks += world.state() != [(found_w, None) for found_w in FOUND_W]

        def doomed(line: int = line) -> None:
            kill_at(line)
            live(world, *under_test)
            sys.settrace(None)

        status = child(doomed)
        marks += world.state() != [(found_w, None) for found_w in FOUND_W]
        wrong = after_a_start(world) + after_restore_all(world)
        found += [f"{name}, killed at line {line}: {each}" for each in wrong]
        if status != signal.SIGKILL:
            ended = "" if status == 0 else f"the life itself failed: {status}"
            return {
                "lines": line - 1,
                "changed": marks,
                "wrong": found[:20] + ([ended] if ended else []),
            }
    raise AssertionError("a life that never ends")


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
