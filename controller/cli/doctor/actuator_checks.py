"""What `wattmesh doctor` says of this node's actuator: is it there, and what holds it back."""

import os
from collections.abc import Iterator

from wattmesh.controller.cli.doctor.findings import Finding, ok, problem, unknown
from wattmesh.controller.settings.model import ActuatorSection
from wattmesh.errors import Refused, WattmeshError
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.desired import Applied

CHECK = "actuator"


def actuator(section: ActuatorSection) -> Iterator[Finding]:
    """Ask the actuator, where the settings or its socket say that there is one."""
    if section.mode == "observe" and not os.path.exists(section.socket):
        return
    try:
        yield judged(ActuatorClient(section.socket).state())
    except Refused as error:
        yield unknown(CHECK, str(error), "run doctor as root or as a member of the group")
    except WattmeshError as error:
        yield problem(CHECK, str(error), "systemctl status wattmesh-actuator")


def judged(told: Applied) -> Finding:
    """Judge what the actuator says is in force."""
    settable = sum(gpu.settable for gpu in told.gpus)
    ours = sum(gpu.clock_mhz is not None or gpu.cap_w is not None for gpu in told.gpus)
    text = f"mode {told.mode}, {settable} of {len(told.gpus)} GPUs settable, {ours} set now"
    text += f", obeys journal {told.journal}" if told.journal else ""
    if told.mode == "enforce" and told.trouble:
        return problem(CHECK, told.trouble, "wattmesh restore-all --resume, when you are done")
    troubles = sorted({gpu.trouble for gpu in told.gpus if gpu.trouble})
    if troubles:
        return problem(CHECK, f"{text}; {troubles[0]}", "what the sentence says")
    if not told.gpus:
        return problem(CHECK, f"mode {told.mode}, no GPU answers", "nvidia-smi -L")
    return ok(CHECK, text)
