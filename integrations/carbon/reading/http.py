"""JSON over HTTP from a provider that may be slow, wrong, down or telling us to wait.

Invariant: one `get` ends within `tries * (try_s + read_s)` plus its pauses, whatever the other side
does, and reads at most `MOST_BYTES`; what it cannot use becomes one sentence of the tree of errors
(`answers.classified`), without a secret in it. A key goes to the provider's own address and to no
other: redirects are refused, and no `.netrc` is read.
"""

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from wattmesh.errors import RateLimited, SourceRefused, SourceUnavailable, Transient
from wattmesh.integrations.carbon.reading.answers import Answer, Classify, classified, waits
from wattmesh.integrations.carbon.reading.breaker import Breaker
from wattmesh.integrations.carbon.reading.credentials import NONE, Credentials
from wattmesh.telemetry.deadline import Overdue, Worker

if TYPE_CHECKING:
    from requests import Response

MOST_BYTES = 4 << 20
CHUNK_BYTES = 64 << 10
HTTP_OK = 200

LONGEST_WHOLE = 18
"""Digits of a whole number of 64 bits, whatever its sign."""

LONGEST_WAIT_S = 86_400.0
"""A Retry-After beyond a day is taken as a day: a slip at the provider must not end the series."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One request. `url` is what errors show: without query parameters that carry a secret."""

    url: str
    query: str
    headers: Mapping[str, str]
    credentials: Credentials
    classify: Classify | None


class JsonHttp:
    """Gets JSON from one provider. For one thread: the requests run in a worker of its own."""

    def __init__(
        self,
        base_url: str,
        *,
        patience: Patience | None = None,
        pause: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] = time.monotonic,
        breaker: Breaker | None = None,
    ) -> None:
        """Take the provider's address, with or without a slash at its end.

        Args:
            base_url: scheme, host and, behind a mirror, a path.
            patience: deadlines and tries.
            pause: waits between tries, seconds.
            clock_s: for the rest of the breaker and of a long Retry-After; never runs backwards.
            breaker: the breaker to begin with.
        """
        self._base_url = base_url.rstrip("/")
        self._patience = patience or Patience()
        self._pause = pause
        self._clock_s = clock_s
        self._breaker = breaker or Breaker()
        self._worker = Worker("carbon-http")
        self._not_before_s = float("-inf")

    @property
    def base_url(self) -> str:
        """The provider's address."""
        return self._base_url

    @property
    def breaker(self) -> Breaker:
        """Whether the provider is asked at all; `breaker_state` says it in a word."""
        return self._breaker

    @property
    def breaker_state(self) -> str:
        """What happens to a poll now: closed, open or half-open."""
        return str(self._breaker.state(self._clock_s()))

    def get(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials = NONE,
        classify: Classify | None = None,
    ) -> Any:
        """Get one JSON document.

        Args:
            path: below the base address, from its slash on.
            query: parameters that may be shown; those that may not are in `credentials`.
            headers: beside the usual ones.
            credentials: what proves who asks.
            classify: says what an answer of this provider means; see `answers`.

        Raises:
            SourceUnavailable: no use in asking (again) now; says what came.
            SourceRefused: a person must mend something first.
        """
        self._require_allowed()
        shown = urlencode(query or {})
        ask = _Ask(
            url=self._base_url + path + (f"?{shown}" if shown else ""),
            query=urlencode(credentials.query),
            headers=dict(headers or {}),
            credentials=credentials,
            classify=classify,
        )
        try:
            answer = self._tries(ask)
        except (RateLimited, SourceRefused):
            self._breaker = self._breaker.succeeded()  # it lives, and says what it wants
            raise
        except SourceUnavailable as error:
            broken = isinstance(error, Transient)
            now_s = self._clock_s()
            self._breaker = self._breaker.failed_at(now_s) if broken else self._breaker.succeeded()
            raise
        except BaseException:
            self._breaker = self._breaker.failed_at(self._clock_s())
            raise
        self._breaker = self._breaker.succeeded()
        return answer

    def close(self) -> None:
        """Let the request thread end."""
        self._worker.close()

    def _require_allowed(self) -> None:
        """Raise while the provider asked for rest, or gets it because it fails."""
        now_s = self._clock_s()
        wait_s = self._not_before_s - now_s
        if wait_s > 0:
            raise RateLimited(
                f"{self._base_url} asked not to be asked for {wait_s:.0f} s", retry_after_s=wait_s
            )
        asked = self._breaker.asked(now_s)
        if asked is None:
            raise Transient(
                f"{self._base_url} failed {self._breaker.failed} times in a row and is left alone "
                f"for {self._breaker.wait_s(now_s):.0f} s"
            )
        self._breaker = asked

    def _tries(self, ask: _Ask) -> Any:
        """Try until it works, is refused, or was tried often enough."""
        # A provider that failed often gets one request to show that it is back.
        tries = 1 if self._breaker.probing else self._patience.tries
        for tried in range(tries):
            answer = self._try(ask)
            if not isinstance(answer, SourceUnavailable):
                return answer
            if tried + 1 == tries:
                break
            self._pause(self._pause_s(tried, answer))
        many = f"({tries} tries)" if tries > 1 else "(1 try)"
        if isinstance(answer, RateLimited):
            raise RateLimited(f"{answer} {many}", retry_after_s=answer.retry_after_s)
        raise Transient(f"{answer} {many}")

    def _pause_s(self, tried: int, error: SourceUnavailable) -> float:
        """Give the pause before the next try: as asked, else exponential with full jitter.

        Raises:
            RateLimited: it asked for more than a poll can wait; no poll is made before that.
        """
        wait_s = waits(error)
        if wait_s is None:
            return random.uniform(0, self._patience.pause_s * 2**tried)
        if wait_s > self._patience.most_wait_s:
            wait_s = min(wait_s, LONGEST_WAIT_S)
            self._not_before_s = self._clock_s() + wait_s
            raise RateLimited(f"{error}; it asks to wait {wait_s:.0f} s", retry_after_s=wait_s)
        return wait_s

    def _try(self, ask: _Ask) -> Any:
        """Make one request within its deadline; give an error that is worth another try."""
        try:
            # Longer than the request's own deadline, which is looked at between two bytes.
            limit_s = self._patience.try_s + self._patience.read_s
            return self._worker.call(lambda: self._request(ask), limit_s)
        except Overdue as error:
            return Transient(f"{ask.url} did not answer in full within {error.waited_s:.1f} s")

    def _request(self, ask: _Ask) -> Any:
        """Make one request; runs in the worker."""
        # Here and not above: requests takes 0.13 s to import, off the daemon's start-up.
        import requests  # noqa: PLC0415

        # Raw reads raise the errors of the layer below requests.
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        # It logs whole request lines at DEBUG, keys in the query included.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)
        patience = self._patience
        deadline_s = time.monotonic() + patience.try_s
        try:
            with requests.get(
                f"{ask.url}{'&' if '?' in ask.url else '?'}{ask.query}" if ask.query else ask.url,
                headers={
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                    "User-Agent": "wattmesh",
                    **ask.headers,
                    **dict(ask.credentials.headers),
                },
                # Without it a line of ~/.netrc for this host would replace the header above.
                auth=lambda prepared: prepared,
                timeout=(patience.connect_s, patience.read_s),
                stream=True,
                allow_redirects=False,
            ) as response:
                _refuse_redirect(response, ask)
                answer = _answer(response, _body(response, ask, deadline_s))
        except (requests.RequestException, HTTPError, OSError) as error:
            failure = ask.credentials.hidden(f"{ask.url} failed: {_cause(error)}")
        except _Slow as slow:
            failure = str(slow)
        else:
            return _read(answer, ask)
        # Out of the handlers: what requests raised may quote the query, and would be printed along.
        return Transient(failure)


class _Slow(Exception):
    """The body did not come in time."""


def _refuse_redirect(response: "Response", ask: _Ask) -> None:
    """Raise for a redirect: where to ask is the operator's choice, not the server's."""
    if response.is_redirect:
        target = ask.credentials.hidden(response.headers["Location"])
        raise SourceUnavailable(
            f"{ask.url} answered {response.status_code}, a redirect to {target}; it was not "
            "followed"
        )


def _answer(response: "Response", body: bytes) -> Answer:
    """Keep of a response what decides about it."""
    headers = response.headers
    return Answer(
        status=response.status_code,
        content_type=headers.get("Content-Type", "").partition(";")[0].strip().lower(),
        body=body,
        retry_after=headers.get("Retry-After", ""),
        date=headers.get("Date", ""),
    )


def _body(response: "Response", ask: _Ask, deadline_s: float) -> bytes:
    """Read the body as it comes, so that a dripping server meets the deadline."""
    body = bytearray()
    # read1 gives what has arrived; reading a fixed amount would wait for all of it.
    while chunk := response.raw.read1(CHUNK_BYTES):
        body += chunk
        if len(body) > MOST_BYTES:
            raise SourceUnavailable(
                f"{ask.url} answered more than {MOST_BYTES >> 20} MiB; not read"
            )
        if time.monotonic() > deadline_s:
            raise _Slow(f"{ask.url} sent only {len(body)} bytes in the time for a whole answer")
    return bytes(body)


def _read(answer: Answer, ask: _Ask) -> Any:
    """Give the document; an error worth another try is given, every other raised."""
    if answer.status != HTTP_OK:
        error = classified(answer, ask.url, ask.classify, ask.credentials)
        if isinstance(error, Transient | RateLimited):
            return error
        raise error
    try:
        return json.loads(answer.body, parse_int=_whole)
    except (ValueError, RecursionError):
        start = ask.credentials.hidden(answer.body.decode(errors="replace"))[:40]
    return Transient(f"{ask.url} answered {start!r}..., which is not JSON")


def _whole(text: str) -> int | float:
    """Read a whole number; one that no machine's word holds counts as a float, maybe infinite."""
    return int(text) if len(text) <= LONGEST_WHOLE else float(text)


def _cause(error: Exception) -> str:
    """Give the innermost cause of a request error in words."""
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    return str(cause) or type(cause).__name__
