"""The client of the actuator's socket: one connection per request."""

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattmesh.errors import Fenced, InputInvalid, Refused, RetryLater, WattmeshError
from wattmesh.telemetry.actuator.wire import (
    LONGEST_LINE,
    ActuatorRequest,
    Op,
    ProcessClaim,
    write_request,
)
from wattmesh.telemetry.desired import Applied, Desired, LeaseKind, Wish

_ERRORS: dict[str, type[WattmeshError]] = {
    "fenced": Fenced,
    "refused": Refused,
    "invalid": InputInvalid,
}


class ActuatorClient:
    """The actuator behind a socket.

    Every call raises what the actuator raised, or `RetryLater`.
    """

    def __init__(self, path: Path, timeout_s: float = 5.0) -> None:
        """Use the actuator at `path`; a call takes at most about `timeout_s`."""
        self._path = path
        self._timeout_s = timeout_s

    def apply(self, desired: Desired, claims: Mapping[str, ProcessClaim]) -> Applied:
        """Replace every wish for this node, and say which processes are whose.

        Repeat it every third of the shortest `lease_s` while the controller is reachable: a lease
        that is not renewed ends.

        Args:
            desired: clocks and caps for every GPU of the node.
            claims: by holder, the processes that are its own.

        Raises:
            Fenced: it obeys another journal, or has seen a higher epoch of this one.
            Refused: this user may not set GPUs. InputInvalid: the request is malformed, or an
                obligation is longer than the settings allow.
            RetryLater: the actuator does not answer.
        """
        answer = self._ask(ActuatorRequest(op=Op.APPLY, desired=desired, claims=claims))
        return Applied.from_json(answer.get("applied"))

    def lock(self, gpus: Sequence[str], clock_mhz: int, lease_s: float) -> Applied:
        """Lock the clocks of GPUs on which only processes of this user compute.

        Args:
            gpus: replace those that this user held before; none gives them all back.
            clock_mhz: highest SM clock, in [1, 100000].
            lease_s: seconds until the lock ends unless this is repeated; at most 60.

        Returns:
            what is in force now: the clock goes there in the steps that the settings allow.

        Raises:
            Refused: it may not be locked; the message says what to do. RetryLater: see `apply`.
        """
        wishes = tuple(
            Wish(
                gpu_uuid=each,
                kind=LeaseKind.ECONOMY,
                holder="own",
                clock_mhz=clock_mhz,
                lease_s=lease_s,
            )
            for each in gpus
        )
        answer = self._ask(ActuatorRequest(op=Op.LOCK, wishes=wishes))
        return Applied.from_json(answer.get("applied"))

    def state(self) -> Applied:
        """Read what is in force on this node.

        Raises:
            Refused, RetryLater: see `apply`.
        """
        return Applied.from_json(self._ask(ActuatorRequest(op=Op.STATE)).get("applied"))

    def look(self) -> Applied:
        """Have the GPUs read now, and given back that nobody computes on any more; see `state`.

        Raises:
            Refused: this user is not root. RetryLater: see `apply`.
        """
        return Applied.from_json(self._ask(ActuatorRequest(op=Op.LOOK)).get("applied"))

    def resume(self) -> Applied:
        """End the pause that `restore` began, and forget that other writers were found.

        Raises:
            Refused, RetryLater: see `apply`.
        """
        return Applied.from_json(self._ask(ActuatorRequest(op=Op.RESUME)).get("applied"))

    def obey(self, journal: str, epoch: int) -> Applied:
        """Assign this node to a journal: only its controller is obeyed, from `epoch` on.

        Args:
            journal: identity of the controller's journal.
            epoch: the lowest epoch that is accepted; in [0, 2^31 - 1].

        Raises:
            Refused, RetryLater: see `apply`. InputInvalid: `journal` or `epoch` is none.
        """
        request = ActuatorRequest(op=Op.OBEY, journal=journal, epoch=epoch)
        return Applied.from_json(self._ask(request).get("applied"))

    def restore(self, *, obligations: bool = False) -> list[dict[str, Any]]:
        """Restore every GPU and stop obeying until `resume`; one object per GPU.

        Raises:
            Refused, RetryLater: see `apply`.
        """
        answer = self._ask(ActuatorRequest(op=Op.RESTORE, obligations=obligations))
        gpus = answer.get("gpus")
        return gpus if isinstance(gpus, list) else []

    def _ask(self, request: ActuatorRequest) -> Mapping[str, Any]:
        """Send one line and read one.

        Raises:
            WattmeshError: what the actuator raised; RetryLater when it did not answer.
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
