"""Switching faults over HTTP, so that alerts can be tried against a server that runs.

POST   /control/faults   {"fault": "hang", "provider": "neso", "times": 3, "during": [A, B]}
GET    /control/faults   what is switched on
DELETE /control/faults   all off; with a body {"fault", "provider"}: only those
GET    /control/asked    requests so far, by provider
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.grid_server.answers import (
    ReceivedRequest,
    Reply,
    ServedProvider,
    moment,
)
from wattmesh.integrations.carbon.grid_server.faults import ActiveFault, Fault, FaultBook

KNOWN = frozenset(
    {"fault", "provider", "zone", "path", "times", "during", "about", "retry_after_s"}
)


class ControlledServer(Protocol):
    """What can be controlled."""

    @property
    def faults(self) -> FaultBook:
        """The rules switched on."""
        ...

    @property
    def asked(self) -> Sequence[ReceivedRequest]:
        """The requests so far."""
        ...


def controlled(method: str, path: Sequence[str], body: bytes, server: ControlledServer) -> Reply:
    """Answer a request to `/control/...`."""
    try:
        match method, list(path):
            case "GET", ["asked"]:
                counts = Counter(str(each.service) for each in list(server.asked) if each.service)
                return Reply(body={"asked": dict(sorted(counts.items()))})
            case "POST", ["faults"]:
                server.faults.add(rule(_object(body)))
            case "DELETE", ["faults"]:
                which = _object(body) if body else {}
                server.faults.clear(*_named(which))
            case "GET", ["faults"]:
                pass
            case _:
                return Reply(
                    status=404, body={"error": "there are /control/faults and /control/asked"}
                )
    except InputInvalid as error:
        return Reply(status=400, body={"error": str(error)})
    return Reply(body={"faults": [_told(each) for each in server.faults.rules()]})


def rule(words: Mapping[str, Any]) -> ActiveFault:
    """Read a rule.

    Raises:
        InputInvalid: a word that is not known, or a value of the wrong kind.
    """
    unknown = sorted(set(words) - KNOWN)
    if unknown:
        raise InputInvalid(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(KNOWN))}")
    fault, service = _named(words)
    if fault is None:
        raise InputInvalid(f"name a fault: {', '.join(Fault)}")
    times, wait = words.get("times"), words.get("retry_after_s", 60)
    if times is not None and not (isinstance(times, int) and times > 0):
        raise InputInvalid(f"times is {times!r}; it must be a whole number above 0")
    if not (isinstance(wait, int) and wait >= 0):
        raise InputInvalid(f"retry_after_s is {wait!r}; it must be a whole number of seconds")
    about = _two(words, "about")
    if about is not None and None in about:
        raise InputInvalid("about needs two times")
    return ActiveFault(
        fault=fault,
        service=service,
        zone=str(words.get("zone", "")),
        path=str(words.get("path", "")),
        times=times,
        during=_two(words, "during") or (None, None),
        about=about and (_sure(about[0]), _sure(about[1])),
        retry_after_s=wait,
    )


def _sure(at: datetime | None) -> datetime:
    if at is None:
        raise InputInvalid("about needs two times")
    return at


def _two(words: Mapping[str, Any], name: str) -> tuple[datetime | None, datetime | None] | None:
    """Read [from, to]; null at either end is open."""
    found = words.get(name)
    if found is None:
        return None
    if not (isinstance(found, list) and len(found) == 2):
        raise InputInvalid(f"{name} is {found!r}; it must be [from, to], each a time or null")
    since, until = (None if each is None else moment(str(each)) for each in found)
    return since, until


def _named(words: Mapping[str, Any]) -> tuple[Fault | None, ServedProvider | None]:
    fault, provider = words.get("fault"), words.get("provider")
    if fault is not None and fault not in set(Fault):
        raise InputInvalid(f"no fault {fault!r}; there are {', '.join(Fault)}")
    if provider is not None and provider not in set(ServedProvider):
        raise InputInvalid(f"no provider {provider!r}; there are {', '.join(ServedProvider)}")
    return (fault and Fault(fault)), (provider and ServedProvider(provider))


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise InputInvalid(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputInvalid('the body must be an object such as {"fault": "hang"}')
    return found


def _told(each: ActiveFault) -> dict[str, Any]:
    since, until = each.during
    return {
        "fault": each.fault,
        "provider": each.service,
        "zone": each.zone,
        "path": each.path,
        "times": each.times,
        "during": [at and at.isoformat() for at in (since, until)],
        "about": each.about and [at.isoformat() for at in each.about],
        "retry_after_s": each.retry_after_s,
    }
