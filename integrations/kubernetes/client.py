"""Speaks with a Kubernetes API server as a pod's own service account.

Invariant: every call ends within its limit; a call that may or may not have taken effect says that
it is not known (`SourceUnavailable`), and a refusal carries the server's own words. The token and
the CA are read anew from their files, because the kubelet replaces them.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from urllib3.exceptions import HTTPError

from wattmesh.errors import InputInvalid, SourceUnavailable

Object = dict[str, Any]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LIMIT_S = 20.0
"""How long one call may take."""

LONGEST = 16 * 1024 * 1024
"""Bytes of an answer, or of one line of a watch."""

PIECE = 64 * 1024

PAGE = 200
"""How many objects are asked for at once."""

MOST_PAGES = 500
LISTING_S = 60.0
"""How long all pages of a listing may take together."""

RETRY_S = 1.0
LONGEST_RETRY_S = 10.0
MERGE = "application/merge-patch+json"


class ObjectConflict(InputInvalid):
    """409: the object is there already, or was changed meanwhile."""


class VersionExpired(InputInvalid):
    """410: a resource version is too old; list again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAddress:
    """Where the API server is, and whose files say who we are.

    Attributes:
        url: for example "https://10.96.0.1:443".
        account: folder with `token` and `ca.crt`.
    """

    url: str
    account: Path = ACCOUNT

    @classmethod
    def of_pod(cls, environment: Mapping[str, str]) -> "ApiAddress":
        """Read it from the environment of a pod.

        Raises:
            InputInvalid: this is no pod.
        """
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise InputInvalid("KUBERNETES_SERVICE_HOST is not set: start this in a pod.")
        return cls(url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")


class KubernetesClient:
    """The API server, as one service account uses it."""

    def __init__(self, server: ApiAddress, *, limit_s: float = LIMIT_S) -> None:
        """Call `server`; each call may take `limit_s`."""
        self._server, self._limit_s = server, limit_s
        self._until_s = float("inf")
        self._session = requests.Session()
        # No proxy and no credentials of a home directory: this is the cluster's own network.
        self._session.trust_env = False

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let all calls of the block together take at most so long."""
        before, self._until_s = self._until_s, min(self._until_s, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._until_s = before

    def get(self, path: str) -> Object | None:
        """Return an object; None if there is none.

        Raises:
            SourceUnavailable, InputInvalid: as every call here.
        """
        return self._call("GET", path, missing=True)

    def create(self, path: str, made: Object) -> Object:
        """Create an object in a collection.

        Raises:
            ObjectConflict: one of its name is there already.
        """
        return self._call("POST", path, made) or {}

    def merge(self, path: str, change: Object) -> Object:
        """Change some fields of an object (a JSON merge patch).

        Raises:
            ObjectConflict: `change` names a resource version that is not the newest.
        """
        return self._call("PATCH", path, change) or {}

    def delete(self, path: str) -> None:
        """Delete an object and what belongs to it; one that is not there is no error."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        self._call("DELETE", path, options, missing=True)

    def listed(self, path: str, labels: str = "") -> tuple[list[Object], str]:
        """Return all objects of a collection with labels, and the version to watch from.

        A listing whose continuation has expired meanwhile is begun anew.
        """
        for _ in range(3):
            with suppress(VersionExpired), self.within(LISTING_S):
                return self._pages(path, labels)
        raise SourceUnavailable(f"{path}: the server forgets its listing while it is read")

    def watch(
        self, path: str, version: str, limit_s: float, labels: str = ""
    ) -> Iterator[tuple[str, Object]]:
        """Yield what happens to a collection from a version on: its kind, and the object.

        Bookmarks are yielded too: their object has a version alone. It ends after `limit_s`, or
        sooner where the server or the network ends it: go on from the last version.

        Raises:
            VersionExpired: list again.
        """
        until = time.monotonic() + limit_s
        asked = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(int(limit_s), 1)),
            **({"labelSelector": labels} if labels else {}),
        }
        answer = self._send("GET", path, None, asked, stream=True, limit_s=limit_s)
        with answer:
            if answer.status_code != requests.codes.ok:
                raise _refusal("GET", path, answer)
            for line in _lines(answer, until):
                try:
                    told = json.loads(line)
                    kind, found = str(told["type"]), told["object"]
                except (ValueError, KeyError, TypeError, RecursionError):
                    return  # cut off in the middle of a line
                if not isinstance(found, dict):
                    return
                if kind == "ERROR":
                    raise _error(f"watch {path}", _code(found), found)
                yield kind, found

    def _pages(self, path: str, labels: str) -> tuple[list[Object], str]:
        found: list[Object] = []
        going_on = ""
        for _ in range(MOST_PAGES):
            asked = {"limit": str(PAGE)}
            asked |= {"labelSelector": labels} if labels else {}
            asked |= {"continue": going_on} if going_on else {}
            page = self._call("GET", path, asked=asked) or {}
            items, about = page.get("items"), page.get("metadata")
            if not isinstance(items, list) or not isinstance(about, dict):
                raise SourceUnavailable(f"GET {path}: the answer is no list")
            found += [each for each in items if isinstance(each, dict)]
            going_on = str(about.get("continue") or "")
            if not going_on:
                return found, str(about.get("resourceVersion") or "")
        raise SourceUnavailable(f"GET {path}: the listing has no end after {MOST_PAGES} pages")

    def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        asked: Mapping[str, str] | None = None,
        *,
        missing: bool = False,
    ) -> Object | None:
        """Make a call; one that the server put off (429, 503) is made again within the limit.

        Raises:
            SourceUnavailable: no answer in time, or one that cannot be read.
            InputInvalid: refused, with the server's words (`ObjectConflict`, `VersionExpired`).
        """
        pause_s = RETRY_S
        until = min(time.monotonic() + self._limit_s, self._until_s)
        while True:
            answer = self._send(method, path, body, asked, limit_s=until - time.monotonic())
            with answer:
                text = _whole(answer, until)
                if answer.status_code == requests.codes.not_found and missing:
                    return None
                # A redirect, as of a gateway in between, has done nothing.
                if answer.status_code in _DONE:
                    return _object(f"{method} {path}", text)
                problem = _refusal(method, path, answer, text)
            put_off = answer.status_code in (429, 503)
            pause_s = max(pause_s, _retry_after_s(answer))
            if not put_off or time.monotonic() + pause_s > until:
                raise problem
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        asked: Mapping[str, str] | None,
        *,
        limit_s: float,
        stream: bool = True,
    ) -> requests.Response:
        account = self._server.account
        try:
            token = (account / "token").read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise InputInvalid(
                f"the service account's token cannot be read ({error}): the pod needs a service "
                "account, and automountServiceAccountToken"
            ) from error
        wait_s = max(limit_s, 0.01)
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = MERGE if method == "PATCH" else "application/json"
        try:
            return self._session.request(
                method,
                f"{self._server.url}{path}",
                params=asked,
                data=json.dumps(body).encode() if body is not None else None,
                headers=headers,
                timeout=(min(wait_s, self._limit_s), wait_s),
                verify=str(account / "ca.crt"),
                allow_redirects=False,
                stream=stream,
            )
        except (requests.RequestException, OSError) as error:
            raise SourceUnavailable(f"{method} {path}: no answer ({_short(error)})") from error


def _whole(answer: requests.Response, until: float) -> bytes:
    """Read an answer, however slowly it drips, up to a time and a length."""
    found = bytearray()
    try:
        for piece in _pieces(answer):
            found += piece
            if len(found) > LONGEST or time.monotonic() > until:
                raise SourceUnavailable(f"{answer.url}: the answer is too long or too slow")
    except (requests.RequestException, HTTPError, OSError) as error:
        raise SourceUnavailable(f"{answer.url}: the answer broke off ({_short(error)})") from error
    return bytes(found)


def _lines(answer: requests.Response, until: float) -> Iterator[bytes]:
    """Yield the whole lines of a watch until it breaks off, or time is up."""
    rest = b""
    try:
        for piece in _pieces(answer):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
            if len(rest) > LONGEST or time.monotonic() > until:
                return
    except (requests.RequestException, HTTPError, OSError):
        return


def _pieces(answer: requests.Response) -> Iterator[bytes]:
    """Yield what has arrived as it arrives: a read of a fixed size would wait for all of it.

    Raises:
        HTTPError: the connection broke off before the end.
    """
    while piece := answer.raw.read1(PIECE, decode_content=True):
        yield piece
    length = answer.raw.length_remaining
    if length:
        raise HTTPError(f"{length} bytes are missing")


def _object(what: str, text: bytes) -> Object:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceUnavailable(f"{what}: the answer is no JSON") from error
    if not isinstance(found, dict):
        raise SourceUnavailable(f"{what}: the answer is no object")
    return found


def _refusal(
    method: str, path: str, answer: requests.Response, text: bytes = b""
) -> InputInvalid | SourceUnavailable:
    said: Object = {}
    with suppress(SourceUnavailable):
        said = _object("", text or _whole(answer, time.monotonic() + LIMIT_S))
    return _error(f"{method} {path}", answer.status_code, said)


def _error(what: str, code: int, said: Object) -> InputInvalid | SourceUnavailable:
    """Return the error for a status; the server's message is part of it."""
    words = "".join(each for each in str(said.get("message", "")) if each.isprintable())[:500]
    sentence = f"{what}: {words or 'no reason given'} ({code})"
    if code in _KINDS:
        return _KINDS[code](sentence)
    if code == requests.codes.unauthorized:
        return SourceUnavailable(f"{sentence}: the token is not known, or has run out")
    if code == requests.codes.forbidden:
        sentence = f"{sentence}: the service account lacks this right: see the Role"
    return InputInvalid(sentence)


_DONE = range(200, 300)

_KINDS: Mapping[int, type[InputInvalid | SourceUnavailable]] = {
    409: ObjectConflict,
    410: VersionExpired,
    408: SourceUnavailable,
    429: SourceUnavailable,
    **dict.fromkeys(range(500, 600), SourceUnavailable),
}


def _code(said: object) -> int:
    code = said.get("code") if isinstance(said, dict) else None
    return code if isinstance(code, int) else 500


def _retry_after_s(answer: requests.Response) -> float:
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0.0


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
