"""Where power readings come from, as the settings say: one source, or a chain of several.

It needs no journal, so that an agent can use it. Invariant: a source that the settings do not name
is not imported; a machine without GPUs never loads NVML's binding.
"""

import platform

from wattmesh.controller.settings.model import NodeMeterSection, PowerSection, Settings
from wattmesh.controller.settings.secrets import read_secret
from wattmesh.telemetry.readings import PowerSource
from wattmesh.telemetry.sources.chain import Chain
from wattmesh.telemetry.sources.ipmi import Ipmi
from wattmesh.telemetry.sources.node_meter import NodeMeter
from wattmesh.telemetry.sources.rapl import RaplSource
from wattmesh.telemetry.sources.static_power import StaticPower


def power_source(settings: Settings) -> PowerSource | None:
    """Open the sources that the settings name; None when power is not read here.

    Several become a chain, best first. A driver, server or counter that does not answer yet is no
    error: its readings say so.
    """
    power = settings.power
    sources = _sources(power, settings.agent.node or platform.node())
    if len(sources) > 1:
        return Chain(sources)
    return sources[0] if sources else None


def _sources(power: PowerSection, host: str) -> list[PowerSource]:
    """List the sources that the settings name; with source `agents`, the nodes read their own."""
    sources: list[PowerSource] = []
    if power.source == "agents":
        return sources
    if power.source == "nvml":
        # Loads NVML's binding, which most controllers need not.
        from wattmesh.telemetry.sources.nvml_source import NvmlSource  # noqa: PLC0415

        sources.append(NvmlSource(power.library))
    if power.source == "amd":
        from wattmesh.telemetry.sources.amd import AmdSource  # noqa: PLC0415 - likewise

        sources.append(AmdSource())
    if power.source != "none":
        if power.rapl:
            sources.append(RaplSource(host=host))
        if power.node_meter is not None:
            sources.append(node_meter(power.node_meter, host))
    if power.prometheus is not None:
        # Loads requests, which only this source needs.
        from wattmesh.telemetry.sources.prometheus import PrometheusSource  # noqa: PLC0415

        server = power.prometheus
        sources.append(PrometheusSource(server.url, server.exporter, server.selector))
    if power.static is not None:
        sources.append(StaticPower(power.static.gpu_uuids, power.static.gpu_power_w))
    return sources


def node_meter(meter: NodeMeterSection, host: str) -> NodeMeter:
    """Open the node's own meter; nothing is asked before its first reading."""
    secret = meter.password_file
    if meter.protocol == "ipmi":
        controller = Ipmi(
            address=meter.address,
            username=meter.username,
            password_file=str(secret) if secret is not None else "",
        )
        return NodeMeter("ipmi", host, controller.power_w)
    # Loads requests, which only this source needs.
    from wattmesh.telemetry.sources.redfish import Redfish  # noqa: PLC0415

    service = Redfish(
        meter.address,
        username=meter.username,
        password=lambda: read_secret("power.node_meter.password_file", secret) if secret else "",
        ca_file=str(meter.ca_file) if meter.ca_file is not None else "",
        chassis=meter.chassis,
    )
    return NodeMeter("redfish", host, service.power_w, close=service.close)
