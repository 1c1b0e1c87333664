"""Fault answers, and answers whose bytes arrive wrong.

Invariant: every loop ends when the server ends (`released`); nothing here can hold it up.
"""

import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler

from wattmesh.integrations.carbon.grid_server.answers import Reply, ServedProvider
from wattmesh.integrations.carbon.grid_server.entsoe import acknowledged
from wattmesh.integrations.carbon.grid_server.faults import ActiveFault, AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.neso import OUTAGE, bad_request
from wattmesh.integrations.carbon.grid_server.watttime import NGINX_403, SCOPE

HUGE_BYTES = 64 << 20
PIECE = b" " * (1 << 16)
PAUSE_S = 0.05
HTML = "text/html"


def instead_of(rule: ActiveFault, service: ServedProvider, now: datetime, url: str) -> Reply | None:
    """Return the answer that replaces the right one; None: the fault is in the answer itself."""
    fault = rule.fault
    if fault is Fault.SERVER_ERROR:
        return _outage(service)
    if fault in (Fault.RATE_LIMITED, Fault.RATE_LIMITED_DATE):
        return _too_many_requests(rule, service, now)
    if fault is Fault.REDIRECT:
        return Reply(
            status=302, body="", content_type=HTML, headers={"Location": f"{url}/elsewhere"}
        )
    if fault is Fault.NO_DATA:
        return _no_data(service)
    if fault is Fault.BAD_REQUEST:
        return _bad_request(service)
    return {
        Fault.UNAUTHORIZED: Reply(status=401, body={"error": "Invalid auth-token"}),
        Fault.TOKEN_EXPIRED: Reply(
            status=401, body={"error": "Invalid token", "message": "Token is expired"}
        ),
        Fault.FORBIDDEN_TEXT: Reply(status=403, body="Access denied", content_type="text/plain"),
        Fault.FORBIDDEN_HTML: Reply(status=403, body=NGINX_403, content_type=HTML),
        Fault.INVALID_SCOPE: Reply(status=403, body=SCOPE),
        Fault.NOT_JSON: Reply(
            body="<html><body>Down for maintenance</body></html>", content_type=HTML
        ),
        Fault.NOT_OBJECT: Reply(body=["data"]),
    }.get(fault)


def _outage(service: ServedProvider) -> Reply:
    if service is ServedProvider.NESO:
        return Reply(status=500, body=OUTAGE)
    if service is ServedProvider.ELECTRICITY_MAPS:
        return Reply(status=500, body={"status": "error", "message": "Internal server error"})
    page = "<html><body><h1>500 Internal Server Error</h1></body></html>"
    return Reply(status=500, body=page, content_type=HTML)


def _too_many_requests(rule: ActiveFault, service: ServedProvider, now: datetime) -> Reply:
    wait = str(rule.retry_after_s)
    if rule.fault is Fault.RATE_LIMITED_DATE:
        wait = format_datetime(now + timedelta(seconds=rule.retry_after_s), usegmt=True)
    body: object = {"status": "error", "message": "Too many requests"}
    if service is ServedProvider.NESO:
        body = {"error": {"code": "429 Too Many Requests", "message": "Slow down."}}
    return Reply(status=429, body=body, headers={"Retry-After": wait})


def _bad_request(service: ServedProvider) -> Reply:
    if service is ServedProvider.ENTSOE:
        return acknowledged("The requested interval exceeds the maximum allowed", status=400)
    if service is ServedProvider.OPEN_METEO:
        reason = "Parameter 'hourly' has an unknown variable"
        return Reply(status=400, body={"error": True, "reason": reason})
    if service is ServedProvider.NESO:
        return bad_request("Please enter a valid date in ISO8601 format.")
    return Reply(status=400, body={"status": "error", "message": "Invalid parameters"})


def _no_data(service: ServedProvider) -> Reply:
    """Return a status 404 that means: no data at present."""
    if service is ServedProvider.ELECTRICITY_MAPS:
        message = "No recent data available for this zone"
        return Reply(status=404, body={"status": "error", "message": message})
    if service is ServedProvider.WATTTIME:
        return Reply(status=404, body={"error": "No data available for this region"})
    return Reply(status=404, body="<html><body>Not here.</body></html>", content_type=HTML)


def sent(
    handler: BaseHTTPRequestHandler,
    reply: Reply,
    suffering: AnswerFaults,
    released: threading.Event,
) -> None:
    """Send an answer with its faults."""
    line = suffering.line()
    body = _encoded_body(reply)
    if line in (Fault.CLOSED, Fault.HANG, Fault.DRIP_HEADERS):
        handler.close_connection = True
        _withheld(handler, line, released)
        return
    length = len(body)
    if line is Fault.TRUNCATED:
        length, body = len(body), body[: len(body) // 2]
    if line is Fault.HUGE:
        length += HUGE_BYTES
    handler.send_response(reply.status)
    handler.send_header("Content-Type", reply.content_type)
    for name, value in reply.headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(length))
    if line is not None:
        handler.send_header("Connection", "close")
    handler.end_headers()
    if line is Fault.DRIP:
        _dripped(handler, body, released)
        return
    handler.wfile.write(body)
    if line is Fault.HUGE:
        _more(handler, released)


def _encoded_body(reply: Reply) -> bytes:
    if isinstance(reply.body, bytes):
        return reply.body
    if isinstance(reply.body, str):
        return reply.body.encode()
    return json.dumps(reply.body).encode()


def _withheld(handler: BaseHTTPRequestHandler, line: Fault, released: threading.Event) -> None:
    """End the connection at once, or keep it open with nothing, or with half a header."""
    if line is Fault.CLOSED:
        return
    if line is Fault.DRIP_HEADERS:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    _until(released, lambda: _piece(handler, b" ") if line is Fault.DRIP_HEADERS else None)


def _dripped(handler: BaseHTTPRequestHandler, body: bytes, released: threading.Event) -> None:
    for i in range(len(body)):
        _piece(handler, body[i : i + 1])
        if released.wait(PAUSE_S):
            return


def _more(handler: BaseHTTPRequestHandler, released: threading.Event) -> None:
    """Send blanks until the client or the server ends."""
    for _ in range(HUGE_BYTES // len(PIECE)):
        if released.is_set():
            return
        handler.wfile.write(PIECE)


def _piece(handler: BaseHTTPRequestHandler, piece: bytes) -> None:
    handler.wfile.write(piece)
    handler.wfile.flush()


def _until(released: threading.Event, each: Callable[[], None]) -> None:
    """Repeat an action at an interval until the server ends."""
    while not released.wait(PAUSE_S):
        each()
