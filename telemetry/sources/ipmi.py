"""A node's power by IPMI: `ipmitool dcmi power reading`, on the node or over the network.

Invariant: no password is on a command line; the program reads it from its own file. A reading that
the controller calls deactivated is no reading.

Command: ipmitool(1), DCMI specification 1.5 section 6.6.1 (Get Power Reading)
"""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.sources.node_meter import Denied

LIMIT_S = 20.0
MOST_CHARACTERS = 200
READING = re.compile(r"Instantaneous power reading:\s*(\d{1,9}) Watts")
STATE = re.compile(r"Power reading state is:\s*(\w+)")
NOT_READ_W = 0xFFFF
"""The field's 16 bits all set: what controllers tell of a sensor that they cannot read."""

REFUSED = re.compile(
    r"(?i)password|unauthorized|privilege|RAKP 2 HMAC|RAKP \d message indicates an error"
)
SETTING = "power.node_meter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ipmi:
    """One controller.

    Attributes:
        address: host name of the controller; "": this node's own, by /dev/ipmi0.
        username: an account of privilege USER. `password_file`: a file with its password.
        program: the command to run.
    """

    address: str = ""
    username: str = ""
    password_file: str = ""
    program: str = "ipmitool"

    def command(self) -> Sequence[str]:
        """Give the command line."""
        if not self.address:
            return (self.program, "-I", "open", "dcmi", "power", "reading")
        # Without -v ipmitool does not say whether it was refused or nobody was there.
        where = ("-v", "-I", "lanplus", "-H", self.address, "-L", "USER", "-N", "3", "-R", "2")
        user = ("-U", self.username, "-f", self.password_file)
        return (self.program, *where, *user, "dcmi", "power", "reading")

    def power_w(self) -> float:
        """Ask for the node's present power, watts.

        Raises:
            Denied: the controller, or this machine, refuses us.
            SourceUnavailable: it does not answer, or tells no power.
        """
        try:
            done = subprocess.run(
                self.command(),
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
            )
        except FileNotFoundError:
            raise SourceUnavailable(
                f'{self.program} is not installed; {SETTING}.protocol = "ipmi" runs it (or take '
                '"redfish")'
            ) from None
        except subprocess.TimeoutExpired:
            raise SourceUnavailable(f"{self.program} has not answered in {LIMIT_S:g} s") from None
        except OSError as error:
            raise SourceUnavailable(f"{self.program} cannot be run ({error})") from None
        return reading(
            done.stdout.decode("ascii", "replace"), done.stderr.decode("ascii", "replace")
        )


def reading(said: str, wrong: str) -> float:
    """Read what ipmitool printed. Pure.

    Args:
        said: its output.
        wrong: its errors.

    Raises:
        Denied: it says that it was refused.
        SourceUnavailable: it tells no power.
    """
    found, state = READING.search(said), STATE.search(said)
    if found is not None and state is not None and state[1] == "activated":
        power_w = float(found[1])
        if power_w == NOT_READ_W:
            raise SourceUnavailable(f"ipmitool tells {found[1]} W, which stands for no reading")
        return power_w
    # It ends with why. Before that it tells what else it could not do, and was refused perhaps.
    lines = [each for each in (wrong.strip() or said.strip()).splitlines() if each.strip()]
    why = " ".join(" ".join(lines[-2:]).split())[-MOST_CHARACTERS:]
    if state is not None and state[1] != "activated":
        raise SourceUnavailable(
            "the controller's power reading is deactivated; `ipmitool dcmi power activate` turns "
            "it on"
        )
    if "Could not open device" in wrong:
        raise Denied(
            f"ipmitool: {why}; load ipmi_devintf, and let the service open /dev/ipmi0 (docs: "
            "energy, the node's meter)"
        )
    if REFUSED.search(why):
        raise Denied(f"ipmitool: {why}; mend {SETTING}.username and password_file")
    raise SourceUnavailable(f"ipmitool tells no power ({why or 'it said nothing'})")
