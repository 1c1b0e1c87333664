"""A node's power by Redfish, the HTTP interface of management controllers (BMC).

It reads `EnvironmentMetrics` (`PowerWatts`), and where there is none the older `Power`
(`PowerControl[].PowerConsumedWatts`). Invariant: it only reads, it follows no link to another
host, and where it cannot tell which chassis is the whole node it says so and reads none.

Schemas: https://redfish.dmtf.org/schemas/ (DSP0268: Chassis, EnvironmentMetrics, Power)
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import requests
from requests.auth import HTTPBasicAuth
from urllib3.exceptions import HTTPError

from wattmesh.errors import FixInput, SourceUnavailable
from wattmesh.telemetry.sources.node_meter import Denied

ROOT = "/redfish/v1/Chassis"
CONNECT_S, ANSWER_S = 3.0, 10.0
QUESTION_S = 120.0
"""The longest for all resources of one answer together: a controller may send byte by byte."""

MOST_BYTES, PIECE_BYTES = 4 << 20, 1 << 16
MOST_WATTS = 1e9
MOST_CHASSIS, MOST_PAGES = 64, 16
SETTING = "power.node_meter"
OFF = frozenset({"Absent", "Disabled", "UnavailableOffline"})
"""States of a sensor in which what it tells is no measurement (DSP0268: Resource, Status)."""


class Redfish:
    """One controller. One thread uses it."""

    def __init__(
        self,
        address: str,
        *,
        username: str = "",
        password: Callable[[], str] = lambda: "",
        ca_file: str = "",
        chassis: Sequence[str] = (),
    ) -> None:
        """Keep how to ask; nothing is asked yet.

        Args:
            address: of the controller, e.g. "https://n17-bmc".
            username: an account that may log in and read, and no more; "" sends none.
            password: gives its password, read anew for each connection.
            ca_file: certificates to trust instead of the system's.
            chassis: whose power is the node's, summed; empty: the only one that tells any.
        """
        self._address = address.rstrip("/")
        self._username, self._password = username, password
        self._ca_file, self._chassis = ca_file, tuple(dict.fromkeys(chassis))
        self._session: requests.Session | None = None
        self._found: tuple[str, ...] = ()
        self._until_s = 0.0

    def power_w(self) -> float:
        """Ask for the node's present power, watts.

        Raises:
            Denied: the controller refuses us.
            SourceUnavailable: it does not answer, or tells no power.
        """
        self._until_s = time.monotonic() + QUESTION_S
        try:
            if not self._found:
                self._found = self._whole()
            return sum(self._told(path) for path in self._found)
        except BaseException:
            # Whatever it was, the next question connects and looks for the chassis anew.
            self._found = ()
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _whole(self) -> tuple[str, ...]:
        """Find the chassis whose power is the whole node's."""
        members = {path.rstrip("/").rpartition("/")[2]: path for path in self._members()}
        if self._chassis:
            unknown = [each for each in self._chassis if each not in members]
            if unknown:
                raise SourceUnavailable(
                    f"{self._address} has no chassis {', '.join(unknown)}; it has "
                    f"{', '.join(sorted(members)) or 'none'}: mend {SETTING}.chassis"
                )
            return tuple(members[each] for each in self._chassis)
        outermost = {
            name: found
            for name, path in members.items()
            if not _contained(document := self._document(path))
            and (found := self._power(document)) is not None
        }
        if len(outermost) > 1:
            each = ", ".join(f"{name} {watts:g} W" for name, watts in sorted(outermost.items()))
            raise SourceUnavailable(
                f"several chassis of {self._address} tell a power ({each}); name those that are "
                f"the whole node together as {SETTING}.chassis"
            )
        if not outermost:
            raise SourceUnavailable(
                f"no chassis of {self._address} tells its power ({', '.join(sorted(members))}); "
                "look for the meter in the controller's own pages"
            )
        return tuple(members[name] for name in outermost)

    def _members(self) -> Iterator[str]:
        """List the paths of all chassis."""
        page: str | None = ROOT
        for _ in range(MOST_PAGES):
            if page is None:
                return
            document = self._document(page)
            members = document.get("Members")
            for each in members[:MOST_CHASSIS] if isinstance(members, list) else ():
                yield _link(each)
            rest = document.get("Members@odata.nextLink")
            page = rest if isinstance(rest, str) else None

    def _told(self, path: str) -> float:
        power_w = self._power(self._document(path))
        if power_w is None:
            raise SourceUnavailable(f"{self._address}{path} tells no power now")
        return power_w

    def _power(self, chassis: dict[str, Any]) -> float | None:
        """Read the power of one chassis; None where it tells none."""
        if chassis.get("EnvironmentMetrics") is not None:
            # Some controllers link to it and have none.
            path = _link(chassis["EnvironmentMetrics"])
            found = self._document(path, may_be_absent=True).get("PowerWatts")
            power_w = _reading(found, "Reading") if isinstance(found, dict) else None
            if power_w is not None:
                return power_w
        if chassis.get("Power") is None:
            return None
        controls = self._document(_link(chassis["Power"])).get("PowerControl")
        each_w = [
            _reading(each, "PowerConsumedWatts")
            for each in (controls if isinstance(controls, list) else ())
            if isinstance(each, dict)
        ]
        # The first is the whole, further ones are its parts (processors, memory).
        if not each_w or each_w[0] is None:
            return None
        if any(part_w is not None and part_w > each_w[0] for part_w in each_w[1:]):
            raise SourceUnavailable(
                f"{self._address}: the first PowerControl tells less than another one, so which "
                "of them is the whole is not known"
            )
        return each_w[0]

    def _document(self, path: str, *, may_be_absent: bool = False) -> dict[str, Any]:
        """Get one resource; nothing of one that is not there, where that may be.

        Raises:
            Denied: 401 or 403.
            SourceUnavailable: no answer, or none that is a JSON object.
        """
        if not path.startswith("/") or path.startswith("//"):
            raise SourceUnavailable(f"{self._address} links to {path[:80]!r}, which is elsewhere")
        self._in_time()
        url = self._address + path
        try:
            with self._connected().get(
                url, timeout=(CONNECT_S, ANSWER_S), allow_redirects=False, stream=True
            ) as response:
                body = self._body(response.raw)
                status = response.status_code
        except (requests.RequestException, HTTPError, OSError) as error:
            # A connection that breaks off is an SSLError too.
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise SourceUnavailable(
                    f"the certificate of {self._address} is not trusted ({_short(error)}); give "
                    f"the one that signed it as {SETTING}.ca_file"
                ) from None
            raise SourceUnavailable(f"{url} does not answer: {_short(error)}") from None
        if status in {401, 403}:
            raise Denied(
                f"{self._address} refuses user {self._username!r} ({status}); mend "
                f"{SETTING}.username and password_file: it is asked again in 15 minutes, as "
                "controllers lock accounts that fail often"
            )
        if status == requests.codes.not_found and may_be_absent:
            return {}
        if status != requests.codes.ok:
            raise SourceUnavailable(f"{url} answered {status}")
        try:
            document = json.loads(body[:MOST_BYTES]) if len(body) <= MOST_BYTES else None
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise SourceUnavailable(f"{url} answered no JSON object; is it a Redfish service?")
        return document

    def _body(self, raw: Any) -> bytes:
        """Read a body piece by piece: small ones unpack to little, and each may be the last."""
        body = b""
        while len(body) <= MOST_BYTES and (piece := raw.read1(PIECE_BYTES, decode_content=True)):
            body += piece
            self._in_time()
        return body

    def _in_time(self) -> None:
        """Raise SourceUnavailable once a question has taken too long."""
        if time.monotonic() > self._until_s:
            raise SourceUnavailable(
                f"{self._address} has not told the power in {QUESTION_S:g} s; it is asked again"
            )

    def _connected(self) -> requests.Session:
        if self._session is None:
            session = requests.Session()
            # No proxy and no .netrc: the controller is in the rack, and its password is ours.
            session.trust_env = False
            session.verify = self._ca_file or True
            session.headers["Accept"] = "application/json"
            if self._username:
                try:
                    session.auth = HTTPBasicAuth(self._username.encode(), self._password().encode())
                except FixInput as error:
                    raise SourceUnavailable(str(error)) from None
            self._session = session
        return self._session


def _contained(chassis: dict[str, Any]) -> bool:
    """Say whether a chassis is a part of another one."""
    links = chassis.get("Links")
    return isinstance(links, dict) and bool(links.get("ContainedBy"))


def _link(value: Any) -> str:
    """Read a link to another resource.

    Raises:
        SourceUnavailable: it is none.
    """
    path = value.get("@odata.id") if isinstance(value, dict) else None
    if not isinstance(path, str):
        raise SourceUnavailable("the controller's answer has a link without @odata.id")
    return path


def _reading(sensor: dict[str, Any], name: str) -> float | None:
    """Read a sensor's watts; None where it is off or gone, or tells another unit."""
    status = sensor.get("Status")
    if isinstance(status, dict) and status.get("State") in OFF:
        return None  # some controllers go on telling the last value
    if sensor.get("ReadingUnits", "W") != "W":
        return None
    return _watts(sensor.get(name))


def _watts(value: Any) -> float | None:
    """Read watts; None where the controller gives no number, or says 0 of a sensor that is dead."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON's whole numbers have no end, and a float has one.
    return float(value) if 0 < value < MOST_WATTS else None


def _short(error: Exception) -> str:
    return str(error)[:200]
