"""What `wattmesh doctor` sees of power: it asks every source that the settings name, itself.

Invariant: reading only; nothing of a GPU is ever changed by looking.
"""

import platform
import time
from collections.abc import Iterator, Sequence

from wattmesh.controller.cli.doctor.findings import Finding, ok, problem
from wattmesh.controller.cli.formats import plural
from wattmesh.controller.daemon.power import node_meter, power_source
from wattmesh.controller.settings.model import Settings
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.deadline import Overdue, Worker
from wattmesh.telemetry.energy.attribution import is_gpu
from wattmesh.telemetry.readings import Closes, Component, PowerReading, PowerSource, Quality
from wattmesh.telemetry.sources.chain import Chain

PATIENCE_S = 6.0
"""Drivers without persistence mode take seconds to wake."""

WORTH_ASKING = frozenset({"nvml", "amd", "none"})
"""Sources that are read on this machine; agents are asked on their own nodes."""


def power(settings: Settings) -> Iterator[Finding]:
    """Ask each source of [power] once."""
    section = settings.power
    if section.source == "none" and section.prometheus is None and section.static is None:
        yield problem(
            "power source",
            "none is set, so no energy is measured",
            'set power.source: "nvml" (or "amd") for the GPUs of this machine, "agents" for those '
            "of others",
        )
    if section.source not in WORTH_ASKING:
        return
    source = power_source(settings)
    if source is None:
        return
    try:
        for each in source.sources if isinstance(source, Chain) else (source,):
            yield _source(each)
    finally:
        if isinstance(source, Closes):
            source.close()


def own_meter(settings: Settings) -> Iterator[Finding]:
    """Ask the meter of a node whose agent reads it, where the settings name one."""
    section = settings.power.node_meter
    if section is None:
        return
    source = node_meter(section, settings.agent.node or platform.node())
    try:
        yield _source(source)
    finally:
        source.close()


def _source(source: PowerSource) -> Finding:
    """Ask one source until it answers, for at most `PATIENCE_S`."""
    check = f"power by {source.name}"
    worker = Worker(check)
    until_s = time.monotonic() + PATIENCE_S
    said = "it has not answered"
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                return judged(check, worker.call(source.read, left_s), source.gpu_uuids())
            except SourceUnavailable as error:
                said = str(error)
                time.sleep(0.1)
            except Overdue as error:
                said = f"{error} from the driver"
                break
    finally:
        worker.close()
    what, _, advice = said.partition("; ")
    return problem(check, what, advice or "look at its own log; readings go on when it answers")


def judged(check: str, readings: Sequence[PowerReading], expected: Sequence[str]) -> Finding:
    """Say what a source's devices tell, and which of them do not. Pure."""
    told = {each.gpu_uuid: each for each in readings if each.tells}
    silent = [each.trouble for each in readings if each.trouble]
    missing = sorted({*expected} - {*told})
    if missing:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        return problem(
            check,
            f"{len(told)} of {plural(len(expected), 'device')} tell their power; silent: {names}",
            silent[0] if silent else "look at `nvidia-smi -L` and the kernel log",
        )
    return ok(check, ", ".join(_described(list(told.values()))))


def _described(readings: Sequence[PowerReading]) -> Iterator[str]:
    gpus = [each for each in readings if is_gpu(each.gpu_uuid)]
    meters = [each for each in readings if each.component is Component.NODE]
    others = len(readings) - len(gpus) - len(meters)
    if gpus:
        yield plural(len(gpus), "GPU")
    if others:
        yield f"{plural(others, 'counter')} of processors and memory"
    if meters:
        yield f"the node's own meter, {sum(each.power_w or 0.0 for each in meters):.0f} W"
        return
    counting = sum(each.energy_mj is not None for each in readings)
    if counting == len(readings):
        yield "energy counted by hardware"
    elif counting:
        yield f"{counting} with an energy counter, the others by their power"
    else:
        yield "no energy counter: integrated from power"
    shared = sum(bool(each.shared) for each in readings)
    if shared:
        yield f"{shared} shared: observed, never acted on"
    qualities = {each.quality for each in readings}
    if Quality.SIMULATED in qualities:
        yield "simulated"
    elif Quality.ESTIMATED in qualities:
        yield "assumed, not measured"
