"""A server that answers as a Kubernetes API server does, over TLS, with its faults.

It has resource versions, optimistic locking, watches with bookmarks that expire, pages of listings,
merge patches, and the rights of one Role. It knows no kind by itself: `admit` checks what is
created or changed.
"""

import copy
import json
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
Key = tuple[str, str, str]

VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        """Keep what the Status object says."""
        self.code, self.reason = code, reason
        super().__init__(message)

    def status(self) -> Object:
        """The Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(slots=True)
class Trouble:
    """What goes wrong, and how often.

    Attributes:
        how: an HTTP status; "hang", never answers; "lost", takes effect and breaks off; "cut", the
            answer ends in the middle; "drip", it comes byte by byte.
        verb: of which calls. `times`: how often. `retry_after`: that header's seconds.
    """

    how: int | str
    verb: str = ""
    times: int = 1
    retry_after: int | None = None


@dataclass(slots=True)
class Store:
    """What the server knows; every change has a version."""

    objects: dict[Key, Object] = field(default_factory=dict)
    events: list[tuple[int, Key, str, Object]] = field(default_factory=list)
    version: int = 100
    forgotten: int = 0
    """Changes up to this version cannot be watched any more."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, key: Key, made: Object, kind: str) -> Object:
        """Store an object, with the next version."""
        with self.changed:
            self.version += 1
            made["metadata"]["resourceVersion"] = str(self.version)
            if kind == "DELETED":
                self.objects.pop(key, None)
            else:
                self.objects[key] = made
            self.events.append((self.version, key, kind, copy.deepcopy(made)))
            self.changed.notify_all()
            return copy.deepcopy(made)

    def forget(self) -> None:
        """Compact: no watch from before now, no listing from before now."""
        with self.changed:
            self.forgotten = self.version
            self.version += 1


class ApiServer(ThreadingHTTPServer):
    """The server. `troubles` are used up in order; `asked` has every call that was heard."""

    daemon_threads = True

    def __init__(
        self,
        certificate: Path,
        key: Path,
        rules: Iterable[Mapping[str, list[str]]],
        admit: Callable[[str, Object, Object | None], str],
    ) -> None:
        """Serve on a free port, with the rights of a Role's rules."""
        super().__init__(("127.0.0.1", 0), _Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.store, self.admit = Store(), admit
        self.tokens = {"token-1"}
        self.rights = {
            (verb, resource)
            for rule in rules
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        self.troubles: list[Trouble] = []
        self.asked: list[tuple[str, str]] = []
        self.behind_s = 0.0
        self.page_forgets = 0
        self.over = threading.Event()
        self.on_delete: Callable[[Key], bool] = lambda key: False

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that break off are part of the tests."""

    def trouble(self, verb: str) -> Trouble | None:
        """Return what goes wrong with a call."""
        for each in self.troubles:
            if each.times > 0 and each.verb in ("", verb):
                each.times -= 1
                return each
        return None

    def stop(self) -> None:
        """Stop."""
        self.over.set()
        self.shutdown()
        self.server_close()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def log_message(self, format: str, *words: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(length)) if length else {}
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        key = _key(url.path)
        verb = VERBS[self.command]
        if verb == "get" and not key[2]:
            verb = "watch" if "watch" in asked else "list"
        self.server.asked.append((verb, key[0]))
        trouble = self.server.trouble(verb)
        if trouble is not None and trouble.how == "hang":
            self.server.over.wait(60.0)
            self.close_connection = True
            return
        try:
            if trouble is not None and isinstance(trouble.how, int):
                raise Refusal(trouble.how, "Trouble", "the test makes trouble")
            self._check_rights(verb, key[0])
            if verb == "watch":
                self._watch(key, asked, trouble)
                return
            told = self._do(verb, key, body, asked)
            self._send(201 if verb == "create" else 200, told, trouble)
        except Refusal as refusal:
            self._send(refusal.code, refusal.status(), trouble)

    def _check_rights(self, verb: str, resource: str) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.server.tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        if (verb, resource) not in self.server.rights:
            raise Refusal(403, "Forbidden", f"{resource} is forbidden: cannot {verb} resource")

    def _do(self, verb: str, key: Key, body: Object, asked: Mapping[str, str]) -> Object:
        store = self.server.store
        with store.changed:
            match verb:
                case "list":
                    return self._list(key, asked)
                case "create":
                    return self._create(key, body)
            found = store.objects.get(key)
            if found is None:
                raise Refusal(404, "NotFound", f'{key[0]} "{key[2]}" not found')
            match verb:
                case "get":
                    return copy.deepcopy(found)
                case "delete":
                    self._delete(key, found)
                    return {"kind": "Status", "status": "Success"}
            return self._patch(key, found, body)

    def _create(self, key: Key, body: Object) -> Object:
        key = (key[0], key[1], str(body["metadata"]["name"]))
        if key in self.server.store.objects:
            raise Refusal(409, "AlreadyExists", f'{key[0]} "{key[2]}" already exists')
        if problem := self.server.admit(key[0], body, None):
            raise Refusal(422, "Invalid", problem)
        made = copy.deepcopy(body)
        at = datetime.fromtimestamp(time.time() - self.server.behind_s, UTC)
        made["metadata"] |= {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "managedFields": [{"manager": "somebody"}],
            "generation": 1,
        }
        return self.server.store.put(key, made, "ADDED")

    def _patch(self, key: Key, found: Object, change: Object) -> Object:
        if self.headers.get("Content-Type") != "application/merge-patch+json":
            raise Refusal(415, "UnsupportedMediaType", "not a merge patch")
        version = change.get("metadata", {}).get("resourceVersion")
        if version not in (None, found["metadata"]["resourceVersion"]):
            raise Refusal(409, "Conflict", "the object has been modified")
        made = merged(found, change)
        if problem := self.server.admit(key[0], made, found):
            raise Refusal(422, "Invalid", problem)
        return self.server.store.put(key, made, "MODIFIED")

    def _delete(self, key: Key, found: Object) -> None:
        if self.server.on_delete(key):
            made = copy.deepcopy(found)
            made["metadata"]["deletionTimestamp"] = datetime.now(UTC).isoformat()
            self.server.store.put(key, made, "MODIFIED")
        else:
            self.server.store.put(key, copy.deepcopy(found), "DELETED")

    def _list(self, key: Key, asked: Mapping[str, str]) -> Object:
        store = self.server.store
        found = [
            copy.deepcopy(each)
            for (resource, namespace, _), each in sorted(store.objects.items())
            if (resource, namespace) == key[:2] and _selected(each, asked.get("labelSelector", ""))
        ]
        going_on = asked.get("continue", "")
        version, _, first = going_on.partition(":") if going_on else (str(store.version), "", "0")
        if int(version) <= store.forgotten or (going_on and self.server.page_forgets > 0):
            self.server.page_forgets -= 1
            raise Refusal(410, "Expired", "the provided continue parameter is too old")
        last = int(first) + int(asked.get("limit", "500"))
        more = f"{version}:{last}" if last < len(found) else ""
        about = {"resourceVersion": version, **({"continue": more} if more else {})}
        return {"kind": "List", "metadata": about, "items": found[int(first) : last]}

    def _watch(self, key: Key, asked: Mapping[str, str], trouble: Trouble | None) -> None:
        store, version = self.server.store, int(asked["resourceVersion"])
        if version < store.forgotten:
            raise Refusal(410, "Expired", f"too old resource version: {version}")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        until = time.monotonic() + float(asked["timeoutSeconds"])
        while time.monotonic() < until and not self.server.over.is_set():
            with store.changed:
                if version < store.forgotten:
                    expired = Refusal(410, "Expired", "too old resource version").status()
                    self._chunk({"type": "ERROR", "object": expired})
                    break
                news = [each for each in store.events if each[0] > version]
                if not news:
                    store.changed.wait(0.1)
            for number, whose, kind, made in news:
                version = number
                if whose[:2] == key[:2] and _selected(made, asked.get("labelSelector", "")):
                    self._chunk({"type": kind, "object": made}, cut=trouble is not None)
                    if trouble is not None:
                        self.close_connection = True
                        return
            if not news and asked.get("allowWatchBookmarks") == "true":
                mark = {"kind": "Any", "metadata": {"resourceVersion": str(version)}}
                self._chunk({"type": "BOOKMARK", "object": mark})
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, told: Object, *, cut: bool = False) -> None:
        line = json.dumps(told).encode() + b"\n"
        line = line[: len(line) // 2] if cut else line
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _send(self, code: int, told: Object, trouble: Trouble | None) -> None:
        how = trouble.how if trouble else ""
        if how == "lost":
            self.close_connection = True
            return
        text = json.dumps(told).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if trouble is not None and trouble.retry_after is not None:
            self.send_header("Retry-After", str(trouble.retry_after))
        self.end_headers()
        if how == "cut":
            self.wfile.write(text[: len(text) // 2])
            self.close_connection = True
        elif how == "drip":
            for each in text:
                self.wfile.write(bytes([each]))
                if self.server.over.wait(0.2):
                    return
        else:
            self.wfile.write(text)


def merged(found: Any, change: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    made = copy.deepcopy(found) if isinstance(found, dict) else {}
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), value)
    return made


def _key(path: str) -> Key:
    _, _, rest = path.partition("/namespaces/")
    namespace, resource, *name = rest.split("/")
    return resource, namespace, name[0] if name else ""


def _selected(found: Object, selector: str) -> bool:
    labels = found["metadata"].get("labels") or {}
    pairs = (each.partition("=") for each in selector.split(",") if each)
    return all(labels.get(name) == value for name, _, value in pairs)
