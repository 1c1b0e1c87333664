"""JSON over HTTP from a provider that may be slow, wrong, down or telling us to wait.

Invariant: one `get` ends within `tries * (try_s + read_s)` plus its pauses, whatever the other side
does, and reads at most `MOST_BYTES`; what it cannot use becomes `SourceUnavailable`, one sentence.
"""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.deadline import Overdue, Worker

if TYPE_CHECKING:
    from requests import Response

MOST_BYTES = 4 << 20
CHUNK_BYTES = 64 << 10
HTTP_OK, HTTP_TOO_MANY, HTTP_SERVER_ERROR = 200, 429, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long and how often to try.

    Attributes:
        connect_s, read_s: for the connection, and between two bytes.
        try_s: for one whole try, to within `read_s`; a server that drips a byte now and then ends
            here.
        pause_s: longest pause before the second try; doubles, and a random part of it is waited,
            so that many clients do not come back together.
        most_wait_s: a Retry-After above this ends the poll; none is made before it is over.
    """

    connect_s: float = 5.0
    read_s: float = 15.0
    try_s: float = 30.0
    tries: int = 3
    pause_s: float = 2.0
    most_wait_s: float = 30.0


class _Again(SourceUnavailable):
    """Worth another try. `wait_s`: what the server asked for, if it did."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        self.wait_s = wait_s
        super().__init__(message)


class JsonHttp:
    """Gets JSON from one provider."""

    def __init__(
        self,
        base_url: str,
        *,
        patience: Patience | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the provider's address, without a slash at its end."""
        self._base_url = base_url.rstrip("/")
        self._patience = patience or Patience()
        self._pause = pause
        self._worker = Worker("carbon-http")
        self._not_before_s = 0.0

    def get(self, path: str) -> Any:
        """Get one JSON document.

        Raises:
            SourceUnavailable: no use in asking (again) now; says what came.
        """
        wait_s = self._not_before_s - time.monotonic()
        if wait_s > 0:
            raise SourceUnavailable(f"{self._base_url} asked not to be asked for {wait_s:.0f} s")
        tries = self._patience.tries
        for left in range(tries - 1, -1, -1):
            try:
                return self._try(path)
            except _Again as error:
                if not left:
                    raise SourceUnavailable(f"{error} ({tries} tries)") from error
                self._pause(self._pause_s(tries - 1 - left, error))
        raise AssertionError("unreachable")  # pragma: no cover

    def close(self) -> None:
        """Let the request thread end."""
        self._worker.close()

    def _pause_s(self, tried: int, error: _Again) -> float:
        """Give the pause before the next try: as asked, else exponential with full jitter."""
        if error.wait_s is None:
            return random.uniform(0, self._patience.pause_s * 2**tried)
        if error.wait_s > self._patience.most_wait_s:
            self._not_before_s = time.monotonic() + error.wait_s
            raise SourceUnavailable(f"{error}; it asks to wait {error.wait_s:.0f} s") from error
        return error.wait_s

    def _try(self, path: str) -> Any:
        """Make one request within its deadline."""
        url = self._base_url + path
        try:
            # Longer than the request's own deadline, which is looked at between two bytes.
            limit_s = self._patience.try_s + self._patience.read_s
            return self._worker.call(lambda: self._request(url), limit_s)
        except Overdue as error:
            raise _Again(f"{url} did not answer in full within {error.waited_s:.1f} s") from None

    def _request(self, url: str) -> Any:
        """Make one request; runs in the worker."""
        # Here and not above: requests takes 0.13 s to import, off the daemon's start-up.
        import requests  # noqa: PLC0415

        # Raw reads raise the errors of the layer below requests.
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        patience = self._patience
        deadline_s = time.monotonic() + patience.try_s
        try:
            with requests.get(
                url,
                headers={
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                    "User-Agent": "wattmesh",
                },
                timeout=(patience.connect_s, patience.read_s),
                stream=True,
                allow_redirects=False,
            ) as response:
                _refuse_redirect(response, url)
                body = _body(response, url, deadline_s)
        except (requests.RequestException, HTTPError, OSError) as error:
            raise _Again(f"{url} failed: {_cause(error)}") from error
        _require_success(response, body, url)
        try:
            return json.loads(body)
        except ValueError as error:
            raise _Again(f"{url} answered {body[:40]!r}..., which is not JSON") from error


def _refuse_redirect(response: "Response", url: str) -> None:
    """Raise for a redirect: where to ask is the operator's choice, not the server's."""
    if response.is_redirect:
        raise SourceUnavailable(
            f"{url} answered {response.status_code}, a redirect to {response.headers['Location']}; "
            "it was not followed"
        )


def _body(response: "Response", url: str, deadline_s: float) -> bytes:
    """Read the body as it comes, so that a dripping server meets the deadline."""
    body = bytearray()
    # read1 gives what has arrived; reading a fixed amount would wait for all of it.
    while chunk := response.raw.read1(CHUNK_BYTES):
        body += chunk
        if len(body) > MOST_BYTES:
            raise SourceUnavailable(f"{url} answered more than {MOST_BYTES >> 20} MiB; not read")
        if time.monotonic() > deadline_s:
            raise _Again(f"{url} sent only {len(body)} bytes in the time for a whole answer")
    return bytes(body)


def _require_success(response: "Response", body: bytes, url: str) -> None:
    """Raise unless the status is 200; worth another try when the server is at fault or busy."""
    status = response.status_code
    if status == HTTP_OK:
        return
    message = f"{url} answered {status}{_reason(body)}"
    if status == HTTP_TOO_MANY or status >= HTTP_SERVER_ERROR:
        raise _Again(message, _retry_after_s(response.headers.get("Retry-After", "")))
    raise SourceUnavailable(message)


def _reason(body: bytes) -> str:
    """Give what an error body says, in brackets, short."""
    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError):
        text = body.decode(errors="replace")
    words = " ".join(str(text).split())[:120]
    return f" ({words})" if words else ""


def _retry_after_s(text: str) -> float | None:
    """Read a Retry-After in seconds; the date form is rare and taken as not given."""
    return float(text) if text.strip().isdecimal() else None


def _cause(error: Exception) -> str:
    """Give the innermost cause of a request error in words."""
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    return str(cause) or type(cause).__name__
