"""Classifies answers other than 200: the error class and its message.

A provider's own classification comes first (`Classify`), because bodies differ too much for one
rule (JSON with `error` or `message`, plain text, a proxy's HTML). Invariant: every answer becomes
exactly one error, whose text has the status and the server's reason, shortened, and no secret.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from wattmesh.errors import (
    AuthFailed,
    NoData,
    NotEntitled,
    RateLimited,
    SourceRefused,
    SourceUnavailable,
    Transient,
)
from wattmesh.integrations.carbon.reading.credentials import Credentials

HTTP_UNAUTHORIZED, HTTP_FORBIDDEN, HTTP_NOT_FOUND, HTTP_TIMEOUT = 401, 403, 404, 408
HTTP_TOO_MANY, HTTP_SERVER_ERROR = 429, 500

MOST_WORDS = 160
"""Longest shown part of a server's reason, in characters."""

SourceError = SourceUnavailable | SourceRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """One answer with a status other than 200.

    Attributes:
        content_type: without parameters, in lower case.
        retry_after, date: raw headers; "" when missing.
    """

    status: int
    content_type: str
    body: bytes
    retry_after: str = ""
    date: str = ""

    @property
    def words(self) -> str:
        """The body's reason on one line; of JSON its message, else its error."""
        try:
            said = json.loads(self.body)
        except (ValueError, RecursionError):
            said = self.body.decode(errors="replace")
        if isinstance(said, dict):
            said = _told(said)
        return " ".join(str(said).split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClass:
    """The class of a provider's answer. `advice`: what to do next, appended to the message."""

    error: type[SourceError]
    advice: str = ""


Classify = Callable[[ErrorAnswer], ErrorClass | None]
"""Returns None for answers that the general rule classifies correctly."""


class _Busy(Transient):
    """A server error with a Retry-After."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


def waits(error: SourceUnavailable) -> float | None:
    """Return how long the server asked to wait, in seconds; None when it did not."""
    if isinstance(error, RateLimited | _Busy):
        return error.retry_after_s
    return None


def classified(
    answer: ErrorAnswer, url: str, classify: Classify | None, credentials: Credentials
) -> SourceError:
    """Return the error for an answer."""
    verdict = (classify(answer) if classify else None) or _by_status(answer)
    # Mask before cutting: half a key would not be recognised.
    said = credentials.hidden(answer.words)[:MOST_WORDS]
    words = f" ({said})" if said else ""
    advice = f"; {verdict.advice}" if verdict.advice else ""
    text = f"{url} answered {answer.status}{words}{advice}"
    wait_s = retry_after_s(answer)
    if verdict.error is RateLimited:
        return RateLimited(text, retry_after_s=wait_s)
    if verdict.error is Transient and wait_s is not None:
        return _Busy(text, wait_s)
    return verdict.error(text)


def retry_after_s(answer: ErrorAnswer) -> float | None:
    """Decode a Retry-After, in seconds or as a date; None when it is neither.

    A date is compared with the server's `Date` header, because our clock may be wrong. RFC 9110,
    10.2.3.
    """
    text = answer.retry_after.strip()
    if text.isascii() and text.isdecimal():
        # Limit the digits, because a longer number would overflow a float.
        return float(text[:18])
    until, since = _moment(text), _moment(answer.date)
    if until is None:
        return None
    wait_s = (until - (since or datetime.now(UTC))).total_seconds()
    return max(0.0, wait_s) if math.isfinite(wait_s) else None


def _by_status(answer: ErrorAnswer) -> ErrorClass:
    status = answer.status
    if status == HTTP_TOO_MANY:
        return ErrorClass(error=RateLimited)
    if status == HTTP_TIMEOUT or status >= HTTP_SERVER_ERROR:
        return ErrorClass(error=Transient)
    told: dict[int, type[SourceError]] = {
        HTTP_UNAUTHORIZED: AuthFailed,
        HTTP_FORBIDDEN: NotEntitled,
        HTTP_NOT_FOUND: NoData,
    }
    return ErrorClass(error=told.get(status, SourceUnavailable))


def _told(said: dict[str, object]) -> object:
    """The reason in a JSON body: the message, which is longer, before the error."""
    error = said.get("error")
    if isinstance(error, dict):
        return error.get("message") or error
    return said.get("message") or error or ""


def _moment(text: str) -> datetime | None:
    """Parse an HTTP date; None when it is malformed."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
