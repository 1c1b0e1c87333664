"""JSON over HTTP with deadlines, retries and limits, for providers that may be slow, wrong or down.

Each way to fail has one remedy, and it is here: a failed try is repeated twice; a provider that
asks to wait (Retry-After) is not asked before, by whatever request comes next; one whose polls fail
in a row is left alone by the breaker. A refusal waits for a person: the caller asks less often.

Invariant: one `get` ends within `tries * (try_s + read_s)` plus its pauses, whatever the server
does, and reads at most `MOST_BYTES`; an unusable answer becomes one error (`answers.classified`)
without a secret in its text. A key is sent only to the provider's own address: redirects are
refused, and `.netrc` is not read.
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
from wattmesh.integrations.carbon.reading.answers import Classify, ErrorAnswer, classified, waits
from wattmesh.integrations.carbon.reading.breaker import Breaker
from wattmesh.integrations.carbon.reading.credentials import NONE, Credentials
from wattmesh.telemetry.deadline import Overdue, Worker

if TYPE_CHECKING:
    from requests import Response

MOST_BYTES = 4 << 20
CHUNK_BYTES = 64 << 10
HTTP_OK = 200

LONGEST_WHOLE = 18
"""Digits that fit in a 64-bit integer, the sign included."""

LONGEST_WAIT_S = 86_400.0
"""Limit of a Retry-After, because a mistake of the provider must not end the series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Deadlines and retries.

    Attributes:
        connect_s, read_s: limits for the connection, and between two bytes.
        try_s: limit for one whole try, accurate to `read_s`; it ends a server that sends a byte now
            and then.
        pause_s: longest pause before the second try; it doubles. A random part of it is waited, so
            that clients do not retry in step.
        most_wait_s: a longer Retry-After is not waited for; it ends the request.
    """

    connect_s: float = 5.0
    read_s: float = 15.0
    try_s: float = 30.0
    tries: int = 3
    pause_s: float = 2.0
    most_wait_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One request. `url` is shown in errors and excludes query parameters with a secret."""

    url: str
    query: str
    headers: Mapping[str, str]
    credentials: Credentials
    classify: Classify | None
    read: Callable[[bytes], Any] | None = None


class JsonHttp:
    """Fetches JSON from one provider. One thread calls it; requests run in a worker thread."""

    def __init__(
        self,
        base_url: str,
        *,
        patience: RetryPolicy | None = None,
        pause: Callable[[float], None] = time.sleep,
        clock_s: Callable[[], float] = time.monotonic,
        breaker: Breaker | None = None,
    ) -> None:
        """Set the provider's address, with or without a final slash.

        Args:
            base_url: scheme, host and, for a mirror, a path.
            patience: deadlines and retries.
            pause: sleeps between tries, in seconds.
            clock_s: a monotonic clock, for the breaker and a long Retry-After.
            breaker: the initial breaker.
        """
        self._base_url = base_url.rstrip("/")
        self._patience = patience or RetryPolicy()
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
    def breaker_state(self) -> str:
        """State of the circuit breaker: closed, open or half-open."""
        return str(self._breaker.state(self._clock_s()))

    def get(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials = NONE,
        classify: Classify | None = None,
        read: Callable[[bytes], Any] | None = None,
    ) -> Any:
        """Get one document, JSON where nothing else is said.

        Args:
            path: below the base address, with its first slash.
            query: parameters that may be shown; secret ones are in `credentials`.
            headers: additional headers.
            credentials: the secret, if any.
            classify: classifies this provider's errors; see `answers`.
            read: decodes another form than JSON; a ValueError says what is wrong with the answer.

        Raises:
            SourceUnavailable: no usable answer; try later.
            SourceRefused: the user must correct something first.
        """
        self._require_allowed()
        shown = urlencode(query or {})
        ask = _Ask(
            url=self._base_url + path + (f"?{shown}" if shown else ""),
            query=urlencode(credentials.query),
            headers=dict(headers or {}),
            credentials=credentials,
            classify=classify,
            read=read,
        )
        try:
            answer = self._tries(ask)
        except (RateLimited, SourceRefused):
            self._breaker = self._breaker.succeeded()  # it answers, even if it refuses
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
        """End the request thread."""
        self._worker.close()

    def _require_allowed(self) -> None:
        """Raise while a Retry-After or the breaker's rest lasts."""
        now_s = self._clock_s()
        wait_s = self._not_before_s - now_s
        if wait_s > 0:
            raise RateLimited(
                f"{self._base_url} asked for a pause; the next request is in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        asked = self._breaker.begin_poll(now_s)
        if asked is None:
            raise Transient(
                f"{self._base_url} failed {self._breaker.failed} times in a row; the next "
                f"request is in {self._breaker.wait_s(now_s):.0f} s"
            )
        self._breaker = asked

    def _tries(self, ask: _Ask) -> Any:
        """Retry until a usable answer, a refusal, or the last try."""
        # A half-open breaker permits one request.
        tries = 1 if self._breaker.probing else self._patience.tries
        for tried in range(1, tries + 1):
            answer = self._try(ask)
            if not isinstance(answer, SourceUnavailable):
                return answer
            wait_s = waits(answer)
            if tried == tries or (wait_s or 0.0) > self._patience.most_wait_s:
                break
            # Exponential with full jitter, where the server does not say.
            longest_s = self._patience.pause_s * 2 ** (tried - 1)
            self._pause(random.uniform(0, longest_s) if wait_s is None else wait_s)
        raise self._given_up(answer, wait_s, tried)

    def _given_up(
        self, error: SourceUnavailable, wait_s: float | None, tried: int
    ) -> SourceUnavailable:
        """Return the error of a request after its last try; keep the wait that was asked for."""
        text = f"{error} ({tried} {'try' if tried == 1 else 'tries'})"
        if wait_s is not None:
            wait_s = min(wait_s, LONGEST_WAIT_S)
            self._not_before_s = self._clock_s() + wait_s
            text = f"{text}; it asks to wait {wait_s:.0f} s"
        if isinstance(error, RateLimited) or (wait_s or 0.0) > self._patience.most_wait_s:
            return RateLimited(text, retry_after_s=wait_s)
        return Transient(text)

    def _try(self, ask: _Ask) -> Any:
        """Make one request within its deadline; return, not raise, an error worth a retry."""
        try:
            # Longer than the request's own deadline, which is checked between two bytes.
            limit_s = self._patience.try_s + self._patience.read_s
            return self._worker.call(lambda: self._request(ask), limit_s)
        except Overdue as error:
            return Transient(f"{ask.url} did not answer in full within {error.waited_s:.1f} s")

    def _request(self, ask: _Ask) -> Any:
        """Make one request, in the worker thread."""
        # Imported here: requests takes 0.13 s, which would delay the daemon's start.
        import requests  # noqa: PLC0415

        # Raw reads raise urllib3's errors.
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        # At DEBUG it would log whole request lines, including keys in the query.
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
                # Without this, a line of ~/.netrc for the host would replace the header above.
                auth=lambda prepared: prepared,
                timeout=(patience.connect_s, patience.read_s),
                stream=True,
                allow_redirects=False,
            ) as response:
                _refuse_redirect(response, ask)
                answer = _error_answer(response, _body(response, ask, deadline_s))
        except (requests.RequestException, HTTPError, OSError) as error:
            failure = ask.credentials.hidden(f"{ask.url} failed: {_innermost_cause(error)}")
        except _Slow as slow:
            failure = str(slow)
        else:
            return _read(answer, ask)
        # Outside of the handlers, because a chained exception may quote the query.
        return Transient(failure)


class BehindBreaker:
    """What asks one service, and says what happens to a poll of it now."""

    _http: JsonHttp

    @property
    def breaker_state(self) -> str:
        """State of the circuit breaker before the service: closed, open or half-open."""
        return self._http.breaker_state


class _Slow(Exception):
    """The body did not come in time."""


def _refuse_redirect(response: "Response", ask: _Ask) -> None:
    """Refuse a redirect: the operator chooses the address, not the server."""
    if response.is_redirect:
        target = ask.credentials.hidden(response.headers["Location"])
        raise SourceUnavailable(
            f"{ask.url} answered {response.status_code}, a redirect to {target}; it was not "
            "followed"
        )


def _error_answer(response: "Response", body: bytes) -> ErrorAnswer:
    headers = response.headers
    return ErrorAnswer(
        status=response.status_code,
        content_type=headers.get("Content-Type", "").partition(";")[0].strip().lower(),
        body=body,
        retry_after=headers.get("Retry-After", ""),
        date=headers.get("Date", ""),
    )


def _body(response: "Response", ask: _Ask, deadline_s: float) -> bytes:
    """Read the body in parts, so that the deadline also ends a slow server."""
    body = bytearray()
    # read1 returns what has arrived; read would wait for the whole amount.
    while chunk := response.raw.read1(CHUNK_BYTES):
        body += chunk
        if len(body) > MOST_BYTES:
            raise SourceUnavailable(
                f"{ask.url} answered more than {MOST_BYTES >> 20} MiB; not read"
            )
        if time.monotonic() > deadline_s:
            raise _Slow(f"{ask.url} sent only {len(body)} bytes in the time for a whole answer")
    return bytes(body)


def _read(answer: ErrorAnswer, ask: _Ask) -> Any:
    """Decode the document; return an error that is worth a retry, raise any other."""
    if answer.status != HTTP_OK:
        error = classified(answer, ask.url, ask.classify, ask.credentials)
        if isinstance(error, Transient | RateLimited):
            return error
        raise error
    if ask.read is not None:
        try:
            return ask.read(answer.body)
        except ValueError as error:
            return Transient(ask.credentials.hidden(f"{ask.url} sent what {error}"))
    try:
        return json.loads(answer.body, parse_int=_whole)
    except (ValueError, RecursionError):
        start = ask.credentials.hidden(answer.body.decode(errors="replace"))[:40]
    return Transient(f"{ask.url} answered {start!r}..., which is not JSON")


def _whole(text: str) -> int | float:
    """Parse an integer; one that exceeds 64 bits becomes a float, maybe infinite."""
    return int(text) if len(text) <= LONGEST_WHOLE else float(text)


def _innermost_cause(error: Exception) -> str:
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    return str(cause) or type(cause).__name__
