"""The engine on the real NVML binding and the fake library: groups, modes, full disks, lies."""

import os
import resource
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from wattmesh.errors import Fenced, JournalUnavailable, SourceUnavailable
from wattmesh.telemetry.actuator.device import NvmlGpus
from wattmesh.telemetry.actuator.engine import Engine
from wattmesh.telemetry.actuator.journal import ActuatorJournal
from wattmesh.telemetry.actuator.restore import restore_all
from wattmesh.telemetry.actuator.rules.clock import moment
from wattmesh.telemetry.actuator.rules.facts import LockAndCap
from wattmesh.telemetry.actuator.rules.leases import BootTime
from wattmesh.telemetry.actuator.settings import ActuatorMode, ActuatorSettings
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import Desired, LeaseKind, Wish
from wattmesh.telemetry.fake_nvml import FakeNvml

CLAIMS = {"run-1": ProcessClaim(uids=frozenset({os.geteuid()}))}


class Clock:
    """The machine's clocks, ahead by what a test says."""

    def __init__(self) -> None:
        """Start with the real ones."""
        self.ahead_s = 0.0
        self.wall_ahead_s = 0.0
        self.boot_id = moment().boot_id

    def __call__(self) -> BootTime:
        """Give the moment."""
        now = moment()
        return BootTime(
            wall=now.wall + timedelta(seconds=self.ahead_s + self.wall_ahead_s),
            boot_s=now.boot_s + self.ahead_s,
            boot_id=self.boot_id,
        )


class World:
    """Two fake GPUs with a job of ours, an engine, and its clock."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """Make them."""
        self.fake = FakeNvml.create(folder / "gpus", gpus=2)
        for gpu in self.fake.gpus:
            gpu.load(1.0)
            gpu.process(os.getpid())
        usual = ActuatorSettings(
            mode=ActuatorMode.ENFORCE,
            socket=folder / "socket",
            journal=folder / "journal",
            library=self.fake.library,
            write_every_s=0,
            step_share=1.0,
        )
        self.settings = replace(usual, **settings)
        self.clock = Clock()
        self.open()

    def open(self) -> None:
        """Begin a life."""
        self.journal = ActuatorJournal.open(self.settings.journal)
        # A loaded machine may take long over one call; what must be timed out, hangs for ever.
        self.device = NvmlGpus(self.settings.library, call_s=10.0)
        self.engine = Engine(
            journal=self.journal, device=self.device, settings=self.settings, clock=self.clock
        )
        self.engine.start()

    def close(self) -> None:
        """End a life; nothing is given back."""
        self.journal.close()
        self.device.close()

    def wish(self, *wishes: Wish, epoch: int = 1, claims: Any = None) -> None:
        """Let the agent say what is wished."""
        desired = Desired(node="n1", epoch=epoch, serial="s", wishes=wishes)
        self.engine.hear(desired, CLAIMS if claims is None else claims)

    def economy(self, clock: int = 1200, cap: float | None = None) -> list[Wish]:
        """Wish the same of both GPUs for one run."""
        return [
            Wish(
                gpu_uuid=gpu.uuid,
                kind=LeaseKind.ECONOMY,
                holder="run-1",
                clock_mhz=clock,
                cap_w=cap,
                lease_s=30,
            )
            for gpu in self.fake.gpus
        ]

    def duty(self, cap: float = 450.0, seconds: float = 600.0) -> Wish:
        """Cap GPU 0."""
        return Wish(
            gpu_uuid=self.fake.gpus[0].uuid,
            kind=LeaseKind.OBLIGATION,
            holder="breaker-7",
            cap_w=cap,
            until=datetime.now(UTC) + timedelta(seconds=seconds),
        )

    def state(self) -> list[tuple[float, int | None]]:
        """Give limit and lock of each GPU as they really are."""
        truths = [gpu.truth() for gpu in self.fake.gpus]
        return [(each.requested_limit_w, each.lock_mhz) for each in truths]

    def trouble(self) -> str:
        """Give every trouble."""
        return " ".join(each.trouble for each in self.engine.state().gpus).strip()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A node in mode enforce."""
    with closing(World(tmp_path)) as made:
        yield made


FREE: list[tuple[float, int | None]] = [(700.0, None), (700.0, None)]


class Disobedient:
    """A device whose one GPU says that it was set and was not, as NVML's v2 setter does."""

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


def test_a_setter_that_lies_is_found_out_and_its_group_goes_back(tmp_path: Path) -> None:
    """GPU 1 takes no limit and says it did: GPU 0, which moved, is taken back too."""
    with closing(World(tmp_path)) as world:
        spoilt = Disobedient(world.device, world.fake.gpus[1].uuid)
        world.engine = Engine(
            journal=world.journal, device=spoilt, settings=world.settings, clock=world.clock
        )
        world.engine.start()
        world.wish(*world.economy(cap=500))
        assert world.state() == FREE
        assert not world.journal.memory.held
        world.engine.beat()
        assert "was set to 500 W and reads back 700 W" in world.trouble()


class Mute:
    """A device that obeys and whose answer to its first lock never comes."""

    def __init__(self, device: Any) -> None:
        """Spoil a device."""
        self._device, self._silent = device, True

    def __getattr__(self, name: str) -> Any:
        """Everything else is the device's."""
        return getattr(self._device, name)

    def lock_clock(self, gpu_uuid: str, clock_mhz: int | None) -> None:
        """Do it, and for the first time say nothing in time."""
        self._device.lock_clock(gpu_uuid, clock_mhz)
        if self._silent:
            self._silent = False
            raise SourceUnavailable(f"{gpu_uuid}: the driver gave no answer for 1.0 s")


def test_a_lock_without_an_answer_is_taken_away_and_nobody_else_is_blamed(tmp_path: Path) -> None:
    """It may be in force or not, and cannot be read: so it is made sure of, then tried again."""
    with closing(World(tmp_path)) as world:
        world.engine = Engine(
            journal=world.journal,
            device=Mute(world.device),
            settings=world.settings,
            clock=world.clock,
        )
        world.engine.start()
        world.wish(*world.economy())
        assert len(world.journal.memory.held) == 1, "what may be in force is ours"
        world.clock.ahead_s += 2
        for _ in range(6):
            world.engine.beat()
        assert [lock for _, lock in world.state()] == [1200, 1200]
        assert not world.trouble()
        world.wish(epoch=2)
        world.engine.beat()
        assert world.state() == FREE


def test_a_group_without_permission_sets_nothing_and_says_why(world: World) -> None:
    """The sentence says who may."""
    world.fake.permit(False)
    world.wish(*world.economy())
    world.engine.beat()
    assert world.state() == FREE
    assert "setting needs root" in world.trouble()
    world.fake.permit(True)
    world.clock.ahead_s += 2
    world.engine.beat()
    assert [lock for _, lock in world.state()] == [1200, 1200]


def test_observe_sets_nothing_and_remembers_nothing(tmp_path: Path) -> None:
    """The default mode refuses all, in a sentence."""
    with closing(World(tmp_path, mode=ActuatorMode.OBSERVE)) as world:
        world.wish(*world.economy(), world.duty())
        assert world.state() == FREE
        told = world.engine.state()
        assert "only observes" in told.trouble
        assert not any(each.settable for each in told.gpus)
        assert not world.journal.memory.heard.leases


def test_dry_run_says_what_it_would_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each act once, however often it is wished."""
    with closing(World(tmp_path, mode=ActuatorMode.DRY_RUN)) as world, caplog.at_level("INFO"):
        world.wish(*world.economy(), world.duty())
        for _ in range(3):
            world.engine.beat()
        assert world.state() == FREE
        would = [each.message for each in caplog.records if "would do" in each.message]
        assert len(would) == len(set(would)) == 3


def test_a_lower_epoch_is_refused_even_after_a_restart(world: World) -> None:
    """The highest epoch is on disk before it is obeyed."""
    world.wish(world.duty(), epoch=7)
    with pytest.raises(Fenced, match="epoch 6 of the wish is older than 7"):
        world.wish(epoch=6)
    world.close()
    world.open()
    with pytest.raises(Fenced):
        world.wish(epoch=6)
    assert world.state()[0][0] == 450
    world.wish(epoch=7)
    assert world.state() == FREE or world.state()[0][0] > 450


def test_the_same_wish_again_is_free(world: World) -> None:
    """It renews the lease without reading or writing a GPU or the disk."""
    wishes = [*world.economy(), world.duty()]
    world.wish(*wishes)
    size = world.settings.journal.stat().st_size

    def forbidden(*_: object) -> None:
        raise AssertionError("a GPU was read")

    world.engine._device = replace_facts(world.device, forbidden)
    world.clock.ahead_s += 25
    world.wish(*wishes)
    world.engine._device = world.device
    assert world.settings.journal.stat().st_size == size
    world.clock.ahead_s += 25
    world.engine.beat()
    assert world.state() == [(450.0, 1200), (700.0, 1200)]


def replace_facts(device: NvmlGpus, facts: Any) -> Any:
    """Give a device that must not be read."""

    class Unreadable:
        def __getattr__(self, name: str) -> Any:
            return facts if name == "facts" else getattr(device, name)

    return Unreadable()


def test_a_full_disk_takes_on_nothing_and_still_gives_back(world: World) -> None:
    """What cannot be announced is not set; giving back needs no announcement."""
    uuid = world.fake.gpus[0].uuid
    for turn in range(400):  # longer than the fake GPUs' own file, which the limit must spare
        world.journal.hold(LockAndCap(gpu_uuid=uuid, lock_mhz=1000 + turn))
    world.journal.hold(LockAndCap(gpu_uuid=uuid))
    world.wish(*world.economy())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = world.settings.journal.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(JournalUnavailable):
            world.wish(*world.economy(), world.duty())
        assert world.state()[0][0] == 700
        world.clock.ahead_s += 31
        world.engine.beat()
        assert world.state() == FREE
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_stepped_wall_clock_neither_lifts_nor_prolongs_an_obligation(world: World) -> None:
    """A day forth or back changes nothing; its seconds do."""
    world.wish(world.duty(seconds=600))
    for day in (86_400.0, -86_400.0):
        world.clock.wall_ahead_s = day
        world.engine.beat()
        assert world.state()[0][0] == 450
    world.clock.ahead_s += 601
    world.engine.beat()
    world.engine.beat()
    assert world.state() == FREE


def test_an_obligation_outlives_a_reboot(world: World) -> None:
    """The driver forgot the cap with the boot; it is set again for what is left of it."""
    world.wish(*world.economy(), world.duty(seconds=600))
    world.close()
    world.fake.reload_driver()
    world.fake.gpus[0].foreign_limit(650)  # what a boot script sets: the new value to go back to
    world.clock.boot_id, world.clock.ahead_s = "another boot", 100.0
    world.open()
    assert world.state() == [(450.0, None), (700.0, None)]
    world.clock.ahead_s += 501
    for _ in range(2):
        world.engine.beat()
    assert world.state() == [(650.0, None), (700.0, None)]


def test_a_limit_that_somebody_set_while_we_were_dead_is_left_alone(world: World) -> None:
    """It is neither the found one nor ours; ours, the lock, is given back."""
    world.wish(*world.economy(cap=500))
    world.close()
    world.fake.gpus[1].foreign_limit(600)
    world.open()
    assert world.state() == [(700.0, None), (600.0, None)]


def test_what_calls_a_person_has_a_word_of_its_own(world: World) -> None:
    """A foreign hand until it is resumed; a restore that fails until it works; nothing else."""
    world.wish(*world.economy(cap=500))
    assert faults(world) == ["", ""]
    world.fake.gpus[1].foreign_limit(600)
    world.engine.beat()
    assert sorted(faults(world)) == ["", "foreign"]
    world.engine.resume()
    assert faults(world) == ["", ""]
    world.wish(epoch=2)
    world.engine.beat()
    world.fake.gpus[1].foreign_limit(700)
    world.wish(*world.economy(), epoch=3)
    assert [lock for _, lock in world.state()] == [1200, 1200]
    world.fake.permit(False)
    world.wish(epoch=4)
    for _ in range(3):  # also between two attempts
        world.clock.ahead_s += 0.7
        world.engine.beat()
        assert faults(world) == ["restore", "restore"]
    world.fake.permit(True)
    world.clock.ahead_s += 2.0
    world.engine.beat()
    assert world.state() == FREE
    assert "restore" not in faults(world)


def faults(world: World) -> list[str]:
    """Give the fault of each GPU that the actuator speaks of."""
    return [each.fault for each in world.engine.state().gpus]


def test_a_cap_out_of_band_is_respected_and_survives(world: World) -> None:
    """The found value is what was requested (192), not what a controller enforces (190)."""
    world.fake.gpus[0].out_of_band_cap(500)
    world.wish(world.duty(cap=450))
    assert world.journal.held(world.fake.gpus[0].uuid) == LockAndCap(
        gpu_uuid=world.fake.gpus[0].uuid, found_w=700.0, set_w=450.0
    )
    world.wish(epoch=2)
    world.engine.beat()
    assert world.fake.gpus[0].truth().requested_limit_w == 700
    assert world.fake.gpus[0].truth().enforced_limit_w == 500


def test_a_damaged_journal_gives_back_every_gpu(world: World) -> None:
    """Where both copies of a record are gone, every lock and lowered limit is taken as ours."""
    world.wish(*world.economy(cap=500))
    world.close()
    text = world.settings.journal.read_bytes()
    at = text.index(b'"kind":"held"')
    world.settings.journal.write_bytes(text[: at - 20] + b"#" * (len(text) - at + 20))
    world.open()
    assert world.state() == FREE


def test_restore_all_needs_no_actuator(world: World) -> None:
    """It says what each GPU was and is, and keeps an obligation unless told otherwise."""
    world.wish(*world.economy(), world.duty())
    world.close()
    first, second = sorted(
        restore_all(world.settings), key=lambda each: each["gpu_uuid"] != world.fake.gpus[0].uuid
    )
    assert first["was"] == {"clock_mhz": 1200, "cap_w": 450.0, "found_w": 700.0}
    assert first["now"]["clock_mhz"] is None
    assert first["now"]["limit_w"] == 450
    assert first["obligation"].startswith("breaker-7 until ")
    assert second["now"]["limit_w"] == 700
    assert world.state() == [(450.0, None), (700.0, None)]
    restore_all(world.settings, obligations=True)
    assert world.state() == FREE
    world.open()
    assert world.state() == FREE, "a lifted obligation came back with the next start"


def test_the_baseline_lock_is_what_clocks_go_back_to(tmp_path: Path) -> None:
    """NVML cannot tell the lock it found, so the operator names it."""
    with closing(World(tmp_path, baseline_lock_mhz=1500)) as world:
        world.wish(*world.economy(clock=1200))
        world.wish(epoch=2)
        world.engine.beat()
        assert [lock for _, lock in world.state()] == [1500, 1500]
        assert not world.journal.memory.held
