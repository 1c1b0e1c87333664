"""Check the settings of a node's own meter (`[power.node_meter]`)."""

import re
from collections.abc import Iterator

from wattmesh.controller.settings.mistakes import Mistake, quoted
from wattmesh.controller.settings.model import NodeMeterSection
from wattmesh.controller.settings.secrets import secret_mistakes
from wattmesh.controller.settings.web_address import (
    NO_USER,
    address_mistake,
    holds_user,
    in_the_clear,
)

BMC_NAME = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9.:-]{0,253})?")
"""What may follow ipmitool's -H: never a word that it would take for an option."""


def node_meter_mistakes(key: str, meter: NodeMeterSection) -> Iterator[Mistake]:
    """Name every mistake of [power.node_meter]; `key` is its name."""
    if meter.protocol == "redfish":
        yield from _redfish(key, meter)
    else:
        yield from _ipmi(key, meter)
    if bool(meter.username) != (meter.password_file is not None):
        yield f"{key}.password_file", "and username are given together, or neither"
    if meter.password_file is not None:
        yield from secret_mistakes(f"{key}.password_file", meter.password_file)
    if meter.ca_file is not None and not meter.ca_file.is_file():
        yield f"{key}.ca_file", f"{meter.ca_file} is no file"


def _redfish(key: str, meter: NodeMeterSection) -> Iterator[Mistake]:
    wrong = address_mistake(meter.address, "https://n17-bmc")
    if wrong:
        yield f"{key}.address", wrong
    elif holds_user(meter.address):
        yield f"{key}.address", f"{NO_USER}; take username and password_file"
    elif meter.username:
        yield from in_the_clear(f"{key}.address", meter.address)


def _ipmi(key: str, meter: NodeMeterSection) -> Iterator[Mistake]:
    if not BMC_NAME.fullmatch(meter.address):
        said = f"{quoted(meter.address)} is no host name; write one like n17-bmc"
        yield f"{key}.address", said
    if meter.address and not meter.username:
        yield f"{key}.username", "is missing: IPMI over the network needs an account"
    if not meter.address and meter.username:
        yield f"{key}.username", "is only read with an address: /dev/ipmi0 needs no account"
    for name in ("ca_file", "chassis"):
        if getattr(meter, name):
            yield f"{key}.{name}", 'is only read with protocol = "redfish"'
