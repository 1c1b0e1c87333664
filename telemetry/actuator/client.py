"""What the agent and the command line speak to the actuator with: one connection per request."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattmesh.errors import Fenced, InputInvalid, Refused, RetryLater, WattmeshError
from wattmesh.telemetry.actuator.wire import LONGEST_LINE, Claim, Op, Request, write_request
from wattmesh.telemetry.desired import Applied, Desired

_ERRORS: dict[str, type[WattmeshError]] = {
    "fenced": Fenced,
    "refused": Refused,
    "invalid": InputInvalid,
}


class ActuatorClient:
    """The actuator at a socket. Every call may raise what the actuator raised, or `RetryLater`."""

    def __init__(self, path: Path, timeout_s: float = 5.0) -> None:
        """Speak to the actuator at `path`; a call takes at most about `timeout_s`."""
        self._path = path
        self._timeout_s = timeout_s

    def apply(self, desired: Desired, claims: Mapping[str, Claim]) -> Applied:
        """Say everything that is wished for this node, and whose processes the holders' are.

        Repeat it every third of the shortest `lease_s` for as long as the controller is heard.

        Raises:
            Fenced: it obeys another journal, or has heard a newer controller of this one.
            Refused: we may not wish. InputInvalid: it does not understand, or will not for so long.
            RetryLater: it does not answer.
        """
        answer = self._ask(Request(op=Op.APPLY, desired=desired, claims=claims))
        return Applied.from_json(answer.get("applied"))

    def state(self) -> Applied:
        """Ask what is in force.

        Raises:
            Refused, RetryLater: see `apply`.
        """
        return Applied.from_json(self._ask(Request(op=Op.STATE)).get("applied"))

    def resume(self) -> Applied:
        """Let it obey again after `restore`, and forget foreign writers.

        Raises:
            Refused, RetryLater: see `apply`.
        """
        return Applied.from_json(self._ask(Request(op=Op.RESUME)).get("applied"))

    def obey(self, journal: str, epoch: int) -> Applied:
        """Hand the actuator to a journal: it obeys that one alone, from `epoch` on.

        Args:
            journal: its identity.
            epoch: what its epochs rise from; in [0, 2^31 - 1].

        Raises:
            Refused, RetryLater: see `apply`. InputInvalid: no identity, or no epoch.
        """
        request = Request(op=Op.OBEY, journal=journal, epoch=epoch)
        return Applied.from_json(self._ask(request).get("applied"))

    def restore(self, *, obligations: bool = False) -> list[dict[str, Any]]:
        """Let it give everything back and obey nobody; one object per GPU.

        Raises:
            Refused, RetryLater: see `apply`.
        """
        answer = self._ask(Request(op=Op.RESTORE, obligations=obligations))
        gpus = answer.get("gpus")
        return gpus if isinstance(gpus, list) else []

    def _ask(self, request: Request) -> Mapping[str, Any]:
        """Send one line, read one line.

        Raises:
            WattmeshError: the actuator's own, or it did not answer.
        """
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                channel.settimeout(self._timeout_s)
                channel.connect(str(self._path))
                channel.sendall(write_request(request))
                with channel.makefile("rb") as lines:
                    data = lines.readline(16 * LONGEST_LINE)
            answer = json.loads(data)
        except PermissionError as error:
            raise Refused(
                f"this user may not speak to the actuator at {self._path}: it must be in the group "
                "that actuator.group names"
            ) from error
        except (OSError, ValueError) as error:
            raise RetryLater(
                f"no actuator answers at {self._path} ({error}): is wattmesh-actuator running?"
            ) from error
        if not isinstance(answer, dict) or answer.get("ok") is not True:
            kind = answer.get("error") if isinstance(answer, dict) else None
            sentence = str(answer.get("sentence") if isinstance(answer, dict) else answer)
            raise _ERRORS.get(str(kind), RetryLater)(sentence)
        return answer
