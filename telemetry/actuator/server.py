"""The actuator's socket and heartbeat.

A Unix socket of mode 0660 and the group of the settings. The kernel tells who connects
(`peer_credentials`): root, our own user and members of that group may. Members may read what is in
force, and lock the clocks of GPUs that compute for them alone; only the agent's user may set clocks
and caps of others, only root may do the rest. One line of JSON each way.

Invariant: no client can make another client or the heartbeat wait; clients that may only read take
no slot from those that may write.
"""

import grp
import logging
import os
import pwd
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wattmesh.durable import cannot_write
from wattmesh.errors import Fenced, InputInvalid, Refused, RetryLater, WattmeshError
from wattmesh.telemetry.actuator.engine import Engine
from wattmesh.telemetry.actuator.restore import returned_json
from wattmesh.telemetry.actuator.wire import LONGEST_LINE, ActuatorRequest, Op, line, read_request
from wattmesh.telemetry.concurrency_limit import ConcurrencyLimit
from wattmesh.telemetry.desired import Applied
from wattmesh.telemetry.peer_credentials import credentials, supplementary_groups

log = logging.getLogger(__name__)

BEAT_S = 0.5
"""Between two heartbeats; a GPU that must be restored is restored within 2 s."""

CLIENT_S = 10.0
"""Time for one whole line; a client that takes longer is disconnected."""

READ_BYTES = 64 << 10
MOST_WHO_WISH = 16
MOST_WHO_LOOK, MOST_LOOKS_OF_ONE = 16, 8
"""Concurrent clients that may write; that may only read; of one user that may only read."""

BACKLOG = 1024
"""Connections that wait for `accept`; a burst of clients is not refused."""


class Server:
    """Serves one engine over its socket, until `stop`."""

    def __init__(self, engine: Engine, path: Path, group: str, agent: str) -> None:
        """Bind the socket; `serve` does the rest.

        Args:
            engine: what is served.
            path: of the socket.
            group: whose members may connect; "" for none.
            agent: user that may set clocks and caps, besides root and our own; "" for none.

        Raises:
            Refused: another actuator listens there. InputInvalid: the group does not exist.
        """
        self._engine = engine
        self._path = path
        self._group = _group_id(group)
        self._agent = agent
        self._stop = threading.Event()
        self._wishing = ConcurrencyLimit(MOST_WHO_WISH, MOST_WHO_WISH)
        self._looking = ConcurrencyLimit(MOST_WHO_LOOK, MOST_LOOKS_OF_ONE)
        self._listener = _listen(path, self._group)

    def serve(self, ready: Callable[[], None], beaten: Callable[[], None]) -> None:
        """Serve clients in their own threads, beat in this one, until `stop`.

        Args:
            ready: called once clients are accepted.
            beaten: called after every heartbeat, whether it failed or not.
        """
        threading.Thread(target=self._accept, name="actuator-accept", daemon=True).start()
        ready()
        while not self._stop.wait(BEAT_S):
            try:
                self._engine.beat()
            except WattmeshError as error:
                log.warning("%s", error)
            except Exception:
                log.exception("a bug in the actuator; the next heartbeat tries again")
            beaten()

    def stop(self) -> None:
        """End `serve`. Safe in a signal handler."""
        self._stop.set()

    def close(self) -> None:
        """Close and remove the socket."""
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        """Give each client a thread while slots are free, else disconnect it."""
        while not self._stop.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._stop.wait(0.05):
                    return
                continue
            uid = credentials(client).uid
            places = self._wishing if self._may_wish(uid) else self._looking
            if not places.take(uid):
                client.close()
                continue
            threading.Thread(
                target=self._talk, args=(client, uid, places), name="actuator-client", daemon=True
            ).start()

    def _talk(self, client: socket.socket, uid: int, places: ConcurrencyLimit) -> None:
        """Answer one client until it leaves or stays silent for `CLIENT_S`."""
        try:
            with client:
                lines = Lines(client)
                while data := lines.next():
                    client.settimeout(CLIENT_S)
                    client.sendall(self._answer(client, data))
                    if not data.endswith(b"\n"):
                        return
        except OSError as error:
            log.debug("a client left: %s", error)
        finally:
            places.give_back(uid)

    def _answer(self, client: socket.socket, data: bytes) -> bytes:
        """Carry out one request; every failure becomes an answer."""
        try:
            uid = self._check(client)
            if len(data) > LONGEST_LINE or not data.endswith(b"\n"):
                raise InputInvalid(f"a request is one line of at most {LONGEST_LINE} bytes")
            return line({"ok": True, **self._carry_out(read_request(data), uid)})
        except WattmeshError as error:
            return line({"ok": False, "error": _kind(error), "sentence": str(error)})
        except Exception as error:
            log.exception("a bug in the actuator")
            text = f"a bug in the actuator: {type(error).__name__}: {error}"
            return line({"ok": False, "error": "bug", "sentence": text})

    def _carry_out(self, request: ActuatorRequest, uid: int) -> dict[str, object]:
        """Carry out a request that the caller is allowed to make.

        Raises:
            Refused: the caller may not make it.
        """
        self._allow(request.op, uid)
        if request.op is Op.RESTORE:
            returned = self._engine.restore(obligations=request.obligations)
            return {"gpus": [returned_json(each) for each in returned]}
        if request.op is Op.RESUME:
            self._engine.resume()
        if request.op is Op.LOOK:
            self._engine.beat()
        if request.op is Op.OBEY:
            self._engine.obey(request.journal, request.epoch)
        applied: Applied
        if request.op is Op.LOCK:
            applied = self._engine.lock(uid, request.wishes)
        elif request.desired is not None:
            applied = self._engine.hear(request.desired, request.claims or {})
        else:
            applied = self._engine.state()
        return {"applied": applied.to_json()}

    def _allow(self, op: Op, uid: int) -> None:
        """Check that a user may do `op`: root all, the agent apply, members read and lock.

        Raises:
            Refused: the caller may not do that.
        """
        if op in (Op.STATE, Op.LOCK) or uid in (0, os.geteuid()):
            return
        if op is not Op.APPLY:
            raise Refused(f"uid {uid} may not do that: {op} is for root")
        if not self._may_wish(uid):
            raise Refused(
                f"uid {uid} may not set clocks or limits: only root and the agent's user "
                f"({self._agent or 'none is set'}) may; set actuator.agent to the user that the "
                "agent of this node runs as"
            )

    def _may_wish(self, uid: int) -> bool:
        return uid in (0, os.geteuid(), _user_id(self._agent))

    def _check(self, client: socket.socket) -> int:
        """Return the uid of a client that may connect.

        Raises:
            Refused: neither root, nor our user, nor a member of the group.
        """
        who = credentials(client)
        uid, groups = who.uid, {who.gid, *_groups_now(client), *_groups(who.uid)}
        if uid in (0, os.geteuid()) or self._group in groups:
            return uid
        raise Refused(
            f"uid {uid} may not speak to the actuator: it must be root or a member of "
            f"{_group_name(self._group)} (actuator.group)"
        )


class Lines:
    """Splits what one client sends into lines, with a time limit for each."""

    def __init__(self, client: socket.socket) -> None:
        """Read from a connected socket."""
        self._client = client
        self._rest = bytearray()

    def next(self) -> bytes:
        """Return the next line with its newline; without it, the line was cut off or too long.

        b"" is the end of the stream.

        Raises:
            OSError: the client has left, or took longer than `CLIENT_S`.
        """
        ends_s = time.monotonic() + CLIENT_S
        looked = 0
        while (end := self._rest.find(b"\n", looked)) < 0 and len(self._rest) <= LONGEST_LINE:
            looked = len(self._rest)
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no whole line within {CLIENT_S:.0f} s")
            self._client.settimeout(left_s)
            data = self._client.recv(READ_BYTES)
            if not data:
                break
            self._rest += data
        size = end + 1 if 0 <= end < LONGEST_LINE else min(len(self._rest), LONGEST_LINE + 1)
        line = bytes(self._rest[:size])
        del self._rest[:size]
        return line


def _listen(path: Path, group: int | None) -> socket.socket:
    """Bind the socket; only this user can open it until its group is set.

    Raises:
        Refused: another actuator answers there.
    """
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                path.unlink(missing_ok=True)
            else:
                raise Refused(f"another actuator answers on {path}: one node has one")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        why = cannot_write(path.parent) or error.strerror
        raise InputInvalid(f"{path} cannot be bound: {why}, or correct actuator.socket") from error
    finally:
        os.umask(before)
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(0o660)
    listener.listen(BACKLOG)
    return listener


def _group_id(name: str) -> int | None:
    """Look up a group; "" is None, and then only root and our own user may connect.

    Raises:
        InputInvalid: it does not exist.
    """
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise InputInvalid(
            f"there is no group {name!r} (actuator.group): `groupadd --system {name}`"
        ) from None


def _group_name(gid: int | None) -> str:
    with suppress(KeyError):
        return f"group {grp.getgrgid(gid).gr_name}" if gid is not None else "no group"
    return f"group {gid}"


def _groups_now(client: socket.socket) -> tuple[int, ...]:
    """Supplementary groups that a client connected with; none where the kernel is too old.

    Groups that a unit gets from SupplementaryGroups= are in no user database.
    """
    try:
        return supplementary_groups(client)
    except OSError:
        return ()


def _user_id(name: str) -> int | None:
    """Look up a user by name or number; None when there is none."""
    if name.isdecimal() and name.isascii():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _groups(uid: int) -> list[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)


def _kind(error: WattmeshError) -> str:
    """Name the error class, so that the client raises the same one."""
    kinds: dict[type[WattmeshError], str] = {
        Fenced: "fenced",
        Refused: "refused",
        InputInvalid: "invalid",
        RetryLater: "retry",
    }
    return next((name for kind, name in kinds.items() if isinstance(error, kind)), "failed")
