"""GPUs, wishes and settings as the pure tests of the actuator need them."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from wattmesh.telemetry.actuator.rules import rules
from wattmesh.telemetry.actuator.rules.facts import GpuFacts, GpuProcess, GpuWatch, LockAndCap
from wattmesh.telemetry.actuator.rules.leases import BootTime, ControllerWishes
from wattmesh.telemetry.actuator.rules.refusals import Gpu
from wattmesh.telemetry.actuator.settings import ActuatorMode, ActuatorSettings
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import Desired, LeaseKind, Wish

T0 = datetime(2026, 11, 1, tzinfo=UTC)
NOW = BootTime(wall=T0, boot_s=1000.0, boot_id="boot-1")
RUN = "run-1"
UID = 1000
CLAIMS = {RUN: ProcessClaim(uids=frozenset({UID}))}
SETTINGS = ActuatorSettings(mode=ActuatorMode.ENFORCE, journal=Path("unused"), write_every_s=60.0)


def facts(uuid: str = "GPU-0", **changes: object) -> GpuFacts:
    """Give an H100 at work for the run, with nothing set and nothing wrong."""
    usual = GpuFacts(
        gpu_uuid=uuid,
        board="NVIDIA H100 80GB HBM3",
        min_w=200.0,
        max_w=700.0,
        default_w=700.0,
        requested_w=700.0,
        enforced_w=700.0,
        lowest_mhz=210,
        highest_mhz=1980,
        sm_mhz=1980,
        reasons=0,
        energy_mj=5_000_000,
        persistence=True,
        profile=False,
        shared="",
        processes=(GpuProcess(pid=42, uid=UID),),
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def gpu(seen: GpuFacts | None, *, uuid: str = "GPU-0", **held: object) -> Gpu:
    """Give a GPU as the rules see it; `held` as in `LockAndCap`."""
    name = seen.gpu_uuid if seen else uuid
    ours = LockAndCap(gpu_uuid=name, **held)  # type: ignore[arg-type]
    return Gpu(gpu_uuid=name, facts=seen, held=ours, watch=GpuWatch())


def thrift(
    uuid: str = "GPU-0",
    *,
    clock: int | None = None,
    cap: float | None = None,
    holder: str = RUN,
    lease_s: float = 30.0,
) -> Wish:
    """Give an economy wish."""
    return Wish(
        gpu_uuid=uuid,
        kind=LeaseKind.ECONOMY,
        holder=holder,
        clock_mhz=clock,
        cap_w=cap,
        lease_s=lease_s,
    )


def duty(
    uuid: str = "GPU-0",
    *,
    clock: int | None = None,
    cap: float | None = None,
    seconds: float = 3600.0,
    at: datetime = T0,
) -> Wish:
    """Give an operator's cap that ends `seconds` after `at`."""
    return Wish(
        gpu_uuid=uuid,
        kind=LeaseKind.OBLIGATION,
        holder="breaker-7",
        clock_mhz=clock,
        cap_w=cap,
        until=at + timedelta(seconds=seconds),
    )


def heard(*wishes: Wish, now: BootTime = NOW, epoch: int = 1) -> ControllerWishes:
    """Give what was just heard."""
    desired = Desired(node="n1", epoch=epoch, serial="s", wishes=wishes)
    return ControllerWishes().hear(desired, now)


def later(seconds: float, now: BootTime = NOW) -> BootTime:
    """Give a moment some seconds on."""
    return replace(now, wall=now.wall + timedelta(seconds=seconds), boot_s=now.boot_s + seconds)


def decide(
    gpus: Mapping[str, Gpu] | Gpu,
    *wishes: Wish,
    settings: ActuatorSettings = SETTINGS,
    claims: Mapping[str, ProcessClaim] = CLAIMS,
    now_s: float = NOW.boot_s,
    at_once: bool = False,
) -> rules.ActuatorDecision:
    """Decide one beat."""
    all_of_them = {gpus.gpu_uuid: gpus} if isinstance(gpus, Gpu) else gpus
    return rules.decide(all_of_them, heard(*wishes), claims, settings, now_s, at_once=at_once)
