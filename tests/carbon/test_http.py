"""Asking a provider: how often, how patiently, with what key, and what is shown of it."""

import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.carbon.asking import PATIENT
from wattmesh.errors import (
    AuthFailed,
    InputInvalid,
    NoData,
    NotEntitled,
    RateLimited,
    SourceUnavailable,
    Transient,
    UnknownZone,
    WattmeshError,
)
from wattmesh.integrations.carbon.electricity_maps import ElectricityMaps
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.reading.answers import (
    ErrorAnswer,
    ErrorClass,
    classified,
    retry_after_s,
)
from wattmesh.integrations.carbon.reading.breaker import Breaker
from wattmesh.integrations.carbon.reading.credentials import MASK, NONE, Credentials
from wattmesh.integrations.carbon.reading.http import LONGEST_WAIT_S, JsonHttp, RetryPolicy
from wattmesh.integrations.carbon.watttime import WattTime

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
SECRET = "s3cr3t/key+with=signs"
PATH = "/neso/intensity"


class Now:
    """A clock in seconds that is set by hand."""

    def __init__(self) -> None:
        """Begin at nought."""
        self.s = 0.0

    def __call__(self) -> float:
        """Give the time."""
        return self.s


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server."""
    with GridServer(clock=lambda: NOW).serving() as server:
        yield server


@contextmanager
def asking(
    url: str, clock_s: Now | None = None, breaker: Breaker | None = None
) -> Iterator[JsonHttp]:
    """Give an impatient client."""
    http = JsonHttp(
        url, patience=PATIENT, pause=lambda _: None, clock_s=clock_s or Now(), breaker=breaker
    )
    try:
        yield http
    finally:
        http.close()


class Echo:
    """A server that says back what it was sent, as a careless one would, with any status."""

    def __init__(self) -> None:
        """Answer 400 at first."""
        self.status = 400
        self.says = ""
        self.heard: list[dict[str, str]] = []
        self.url = ""


@pytest.fixture
def echo() -> Iterator[Echo]:
    """Give a running echo."""
    state = Echo()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.heard.append(dict(self.headers.items()))
            said = state.says or f"you sent {self.path} with {dict(self.headers.items())}"
            if state.status == 0:
                self.wfile.write(said.encode() + b"\r\n\r\n")
                return
            body = json.dumps({"error": said}).encode()
            if state.status == 200:
                body = said.encode()
            self.send_response(state.status)
            if state.status == 302:
                self.send_header("Location", state.url + self.path)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def test_the_breaker_opens_after_failed_polls_and_closes_after_a_probe(grid: GridServer) -> None:
    """Two failed polls: no request during the rest; then one try, and all is well again."""
    clock = Now()
    grid.fail(Fault.SERVER_ERROR)
    with asking(grid.url, clock, Breaker(failures=2, rest_s=60)) as http:
        for _ in range(2):
            with pytest.raises(Transient, match="3 tries"):
                http.get(PATH)
        assert http.breaker_state == "open"
        clock.s = 59.0
        with pytest.raises(Transient, match="failed 2 times in a row; the next request is in 1 s"):
            http.get(PATH)
        assert len(grid.asked) == 6
        clock.s = 60.0
        assert http.breaker_state == "half-open"
        with pytest.raises(Transient, match="1 try"):
            http.get(PATH)
        assert len(grid.asked) == 7
        grid.mend()
        clock.s = 180.0
        assert http.get(PATH)["data"]
        assert http.breaker_state == "closed"


@pytest.mark.parametrize("fault", [Fault.UNAUTHORIZED, Fault.NO_DATA, Fault.RATE_LIMITED])
def test_a_provider_that_answers_is_never_left_alone(grid: GridServer, fault: Fault) -> None:
    """A refusal is an answer: the breaker stays closed however often it comes."""
    clock = Now()
    grid.fail(fault)
    with asking(grid.url, clock, Breaker(failures=1)) as http:
        for _ in range(3):
            clock.s += 100.0
            with pytest.raises(WattmeshError):
                http.get(PATH)
        assert http.breaker_state == "closed"


def test_a_long_wait_ends_with_its_time_and_is_never_longer_than_a_day(grid: GridServer) -> None:
    """A Retry-After of years is a slip: after a day it is asked again."""
    clock = Now()
    grid.fail(Fault.RATE_LIMITED, retry_after_s=10**12, times=1)
    with asking(grid.url, clock) as http:
        with pytest.raises(RateLimited) as caught:
            http.get(PATH)
        assert caught.value.retry_after_s == LONGEST_WAIT_S
        clock.s = LONGEST_WAIT_S - 1
        with pytest.raises(RateLimited):
            http.get(PATH)
        clock.s = LONGEST_WAIT_S
        assert http.get(PATH)["data"]


@pytest.mark.parametrize(("probing", "wait_s"), [(False, 7), (True, 7), (True, 3600)])
def test_the_last_try_too_keeps_the_wait_that_it_was_asked_for(
    grid: GridServer, probing: bool, wait_s: int
) -> None:
    """Short waits, and the probe of a half-open breaker: nobody asks before the wait is over."""
    clock = Now()
    grid.fail(Fault.RATE_LIMITED, retry_after_s=wait_s, times=1 if probing else 3)
    breaker = Breaker(failures=1, rest_s=60).failed_at(-60.0) if probing else None
    with asking(grid.url, clock, breaker) as http:
        with pytest.raises(RateLimited, match=f"asks to wait {wait_s} s"):
            http.get(PATH)
        asked = len(grid.asked)
        clock.s = wait_s - 1.0
        with pytest.raises(RateLimited, match="asked for a pause; the next request is in 1 s"):
            http.get(PATH)
        assert len(grid.asked) == asked == (1 if probing else 3)
        clock.s = float(wait_s)
        assert http.get(PATH)["data"]


def answer(retry_after: str, date: str = "") -> ErrorAnswer:
    """Make a 429."""
    return ErrorAnswer(status=429, content_type="", body=b"", retry_after=retry_after, date=date)


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("7", 7.0),
        (" 120 ", 120.0),
        ("0", 0.0),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("9" * 400, 999999999999999999.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, wait_s: float | None) -> None:
    """Both forms of RFC 9110, against the server's own clock; anything else is not said."""
    assert retry_after_s(answer(text, format_datetime(NOW, usegmt=True))) == wait_s


def test_a_date_without_the_servers_clock_is_measured_against_ours() -> None:
    """Without a Date header our clock has to do."""
    until = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert retry_after_s(answer(until)) == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, SourceUnavailable),
        (401, AuthFailed),
        (403, NotEntitled),
        (404, NoData),
        (408, Transient),
        (429, RateLimited),
        (500, Transient),
        (503, Transient),
    ],
)
def test_every_status_is_one_error(status: int, error: type[WattmeshError]) -> None:
    """Without a provider's own reading a status means what HTTP means by it."""
    body = b'{"status": "error", "message": "No such luck"}'
    told = classified(
        ErrorAnswer(status=status, content_type="", body=body), "http://x/y", None, NONE
    )
    assert isinstance(told, error)
    assert str(told) == f"http://x/y answered {status} (No such luck)"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": "a"}', "a"),
        (b'{"error": "a", "message": "b"}', "b"),
        (b'{"error": {"code": "500", "message": "c"}}', "c"),
        (b'{"error": {"code": "500"}}', "{'code': '500'}"),
        (b'{"else": 1}', ""),
        (b"[1]", "[1]"),
        (b"Access\n denied", "Access denied"),
        (b"\xff\xfe", "��"),
    ],
)
def test_the_reason_is_found_in_any_body(body: bytes, words: str) -> None:
    """JSON with error, message or both, text, and bytes that are neither."""
    assert ErrorAnswer(status=400, content_type="", body=body).words == words


def test_a_providers_own_reading_comes_first(grid: GridServer) -> None:
    """`classify` decides what it knows and leaves the rest; its advice ends the sentence."""

    def classify(each: ErrorAnswer) -> ErrorClass | None:
        known = each.status == 401
        return ErrorClass(error=UnknownZone, advice="ask for another") if known else None

    with asking(grid.url) as http:
        grid.fail(Fault.UNAUTHORIZED, times=1)
        with pytest.raises(UnknownZone, match=r"; ask for another$"):
            http.get(PATH, classify=classify)
        grid.fail(Fault.NO_DATA, times=1)
        with pytest.raises(NoData):
            http.get(PATH, classify=classify)


def test_an_answer_too_deep_to_read_is_no_json(echo: Echo) -> None:
    """A hundred thousand brackets end in the usual sentence."""
    echo.status, echo.says = 200, "[" * 100_000
    with asking(echo.url) as http, pytest.raises(Transient, match="which is not JSON"):
        http.get("/a")


def test_a_request_carries_its_headers_and_a_name(echo: Echo) -> None:
    """User-Agent always; headers of the request; the key where it belongs."""
    with asking(echo.url) as http, pytest.raises(SourceUnavailable):
        http.get(
            "/a", headers={"X-Version": "2"}, credentials=Credentials.header("auth-token", "k")
        )
    (heard,) = echo.heard
    assert (heard["User-Agent"], heard["X-Version"], heard["auth-token"]) == ("wattmesh", "2", "k")


def test_a_netrc_line_does_not_replace_the_key(
    echo: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password for the same host in ~/.netrc is not sent, least of all instead of the token."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password elsewhere\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with asking(echo.url) as http:
        for credentials in (NONE, Credentials.header("Authorization", "t", scheme="Bearer")):
            with pytest.raises(SourceUnavailable):
                http.get("/a", credentials=credentials)
    assert [heard.get("Authorization") for heard in echo.heard] == [None, "Bearer t"]


KINDS: dict[str, Callable[[], Credentials]] = {
    "header": lambda: Credentials.header("auth-token", SECRET),
    "bearer": lambda: Credentials.header("Authorization", SECRET, scheme="Bearer"),
    "parameter": lambda: Credentials.parameter("api_key", SECRET),
    "basic": lambda: Credentials.basic("ann", SECRET),
}


def shown(error: BaseException) -> str:
    """Give all that a log could print about an error: text, repr, and the whole chain."""
    chain = "".join(traceback.format_exception(error))
    seen: list[str] = [str(error), repr(error), chain]
    cause = error.__context__
    while cause is not None:
        seen += [str(cause), repr(cause)]
        cause = cause.__context__
    return "\n".join(seen)


def secrets(credentials: Credentials) -> tuple[str, ...]:
    """Give what must be shown nowhere."""
    values = [value.split()[-1] for _, value in credentials.headers + credentials.query]
    return (SECRET, "s3cr3t", *values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [200, 302, 400, 401, 403, 404, 429, 500])
def test_a_secret_that_a_server_says_back_is_masked(
    echo: Echo, kind: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a server quotes, neither error nor log shows the key; all levels are looked at."""
    caplog.set_level(logging.DEBUG)
    echo.status, credentials = status, KINDS[kind]()
    with asking(echo.url) as http, pytest.raises(WattmeshError) as caught:
        http.get("/data", query={"zone": "DE"}, credentials=credentials)
    text = shown(caught.value) + caplog.text + repr(http) + repr(credentials)
    assert not [each for each in secrets(credentials) if each in text]
    assert "zone=DE" in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_status_line_that_quotes_the_request_is_masked(echo: Echo, kind: str) -> None:
    """What is no HTTP at all is quoted by the layers below, key included; not by us."""
    echo.status, credentials = 0, KINDS[kind]()
    with asking(echo.url) as http, pytest.raises(Transient, match="zone=DE") as caught:
        http.get("/data", query={"zone": "DE"}, credentials=credentials)
    assert not [each for each in secrets(credentials) if each in shown(caught.value)]
    assert MASK in str(caught.value)


@pytest.mark.parametrize("status", [200, 400])
def test_a_long_answer_is_cut_after_it_is_masked(echo: Echo, status: int) -> None:
    """Wherever the cut falls, not even the begin of a key remains; a long body stays short."""
    echo.status, credentials = status, Credentials.parameter("api_key", SECRET)
    with asking(echo.url, breaker=Breaker(failures=1000)) as http:
        for length in range(0, 150, 5):
            with pytest.raises(SourceUnavailable) as caught:
                http.get("/" + "x" * length, credentials=credentials)
            assert "s3c" not in str(caught.value)
            assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fault", [Fault.CLOSED, Fault.HANG, Fault.TRUNCATED, Fault.DRIP, Fault.NOT_JSON, Fault.HUGE]
)
def test_a_failing_line_shows_no_secret(
    grid: GridServer, kind: str, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """What the layers below say about a broken connection is masked too."""
    caplog.set_level(logging.DEBUG)
    credentials = KINDS[kind]()
    grid.fail(fault)
    quick = RetryPolicy(connect_s=0.2, read_s=0.05, try_s=0.1, tries=1)
    http = JsonHttp(grid.url, patience=quick, pause=lambda _: None)
    with pytest.raises(SourceUnavailable) as caught:
        http.get(PATH, credentials=credentials)
    http.close()
    text = shown(caught.value) + caplog.text
    assert not [each for each in secrets(credentials) if each in text]


@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_that_is_gone_shows_no_secret(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Connection refused: requests quotes the whole address, and we do not."""
    caplog.set_level(logging.DEBUG)
    credentials = KINDS[kind]()
    with asking("http://127.0.0.1:9") as http, pytest.raises(Transient) as caught:
        http.get("/data", credentials=credentials)
    text = shown(caught.value) + caplog.text
    assert not [each for each in secrets(credentials) if each in text]


def test_providers_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Key, password and token: no `repr` of a provider or of its parts has them."""
    caplog.set_level(logging.DEBUG)
    with GridServer(clock=lambda: NOW).serving() as grid:
        em = ElectricityMaps(zone="DE", key="em-s3cr3t", base_url=grid.base("electricity_maps"))
        wt = WattTime(
            zone="CAISO_NORTH",
            username="ann",
            password="wt-s3cr3t",
            base_url=grid.base("watttime"),
        )
        for each in (em, wt):
            assert each.latest(NOW).points
            each.close()
        text = caplog.text + "".join(repr(each) + repr(vars(each)) for each in (em, wt))
        tokens = [asked.key.split()[-1] for asked in grid.asked]
    assert len(tokens) == 3
    assert not [each for each in ("s3cr3t", *tokens) if each in text]


def test_a_masked_text_says_that_something_was_there() -> None:
    """Sabotaged twin: without masking the key would be seen."""
    text = f"you sent ?api_key={SECRET} or s3cr3t%2Fkey%2Bwith%3Dsigns"
    assert "s3cr3t" in NONE.hidden(text)
    masked = Credentials.parameter("api_key", SECRET).hidden(text)
    assert masked == f"you sent ?api_key={MASK} or {MASK}"


@pytest.mark.parametrize("key", ["", "  ", "two words", "line\nbreak", "schlüssel", "a\x00b"])
def test_what_is_no_key_is_refused_unshown(key: str) -> None:
    """An empty key or one with spaces, breaks or letters beyond ASCII; the text is not shown."""
    for make in (Credentials.header, Credentials.parameter):
        with pytest.raises(InputInvalid, match="put the key alone into its file") as caught:
            make("auth-token", key)
        assert not key.strip() or key.strip() not in str(caught.value)


def test_the_line_break_at_the_end_of_a_file_is_no_part_of_a_key() -> None:
    """A key file written by an editor works."""
    assert Credentials.header("auth-token", "k\n").headers == (("auth-token", "k"),)
