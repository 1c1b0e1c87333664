"""What `wattmesh doctor` sees of TLS and tokens: the certificate here, and the way to controllers.

Invariant: a controller is asked only for what its agent asks every few seconds; nothing is changed,
no lease is renewed, and no secret is shown.
"""

import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from wattmesh.controller.agent.link import ControllerLink
from wattmesh.controller.api.transport.certificate import validity
from wattmesh.controller.cli.doctor.findings import Finding, ok, problem, unknown
from wattmesh.controller.settings.model import AgentSection
from wattmesh.controller.settings.secrets import is_credential, read_secret
from wattmesh.errors import FixInput, SourceUnavailable

SOON = timedelta(days=14)

ASK_S = 5.0
MAKE = "wattmesh nodes token make"

STORES = tuple(map(Path, ("/etc/credstore", "/run/credstore", "/usr/lib/credstore")))
"""Where systemd looks for a credential that a unit loads by its name (systemd.exec(5))."""


def loaded_from(path: Path, stores: Sequence[Path] = STORES) -> Path:
    """Give the file that systemd makes a credential of, where it may be seen; else the path."""
    if is_credential(path) and not path.exists():
        for store in stores:
            if os.access(store / path.name, os.R_OK):
                return store / path.name
    return path


def certificate(certificate: Path, key: Path, now: datetime) -> Finding:
    """Check that the agents' certificate and key fit, and for how long."""
    check = "certificate"
    key = loaded_from(key)
    if is_credential(key) and not key.exists():
        return unknown(check, f"{key.name} is the service's alone", "see the daemon's log")
    try:
        ends = validity(certificate, key).ends_at
    except ssl.SSLCertVerificationError as error:
        why = f"is not valid ({error.reason})"
        return problem(check, f"{certificate} {why}", "make it anew; it is taken within minutes")
    except PermissionError:
        what = f"{certificate} or {key} may not be read by uid {os.geteuid()}"
        return unknown(check, what, "run doctor as root, or as the daemon's user")
    except (OSError, ssl.SSLError) as error:
        return problem(
            check,
            f"{certificate} and {key} do not fit, or cannot be read ({error})",
            "make them anew; they are taken within minutes",
        )
    if ends - now < SOON:
        when = f"at {ends:%Y-%m-%d %H:%M} UTC, and agents are shut out"
        what = f"has expired {when}" if ends <= now else f"ends {when} then"
        return problem(check, f"{certificate} {what}", "make it anew; it is taken within minutes")
    return ok(check, f"{certificate} fits its key and is good until {ends:%Y-%m-%d}")


def controllers(agent: AgentSection) -> Iterator[Finding]:
    """Ask each controller as this node's agent does: is it there, trusted, and takes our token."""
    node = agent.node or socket.gethostname()
    leads = False
    for address in (agent.controller, *agent.standbys):
        finding, leading = _controller(agent, address, node)
        leads = leads or leading
        yield finding
    if agent.standbys and not leads:
        yield problem(
            "agent", "none of its controllers leads", "`wattmesh status` on each says why"
        )


def _controller(agent: AgentSection, address: str, node: str) -> tuple[Finding, bool]:
    """Ask one; give the finding, and whether it leads."""
    check = "agent"
    try:
        path = agent.token_file and loaded_from(agent.token_file)
        token = read_secret("agent.token_file", path) if path else ""
        link = ControllerLink(address, token=token, ca_file=agent.ca_file)
        answer = link.call("GET", f"/v1/agents/{quote(node, safe='')}/desired", limit_s=ASK_S)
    except FixInput as error:
        who = "run doctor as root, or as the agent's user"
        fix = who if os.geteuid() else "see the agent's log"
        return unknown(check, str(error), fix), False
    except SourceUnavailable as error:
        return problem(check, f"{address}: {_cause(error)}", _advice(error)), False
    if answer.status == 401:
        do = f"`{MAKE} {node}` on the head node; put it into agent.token_file; restart the agent"
        return problem(check, f"{address} does not know this node's token", do), False
    if answer.status == 403:
        do = f"agent.node must be the name that the token was made for, or `{MAKE} {node}`"
        return problem(check, f"{address}: the token is not {node}'s", do), False
    if answer.status == 503:
        said = str(answer.json().get("error", "it stands by"))
        return (unknown(check, f"{address}: {said}", "ask again in a few seconds")), False
    return ok(check, f"{address} takes this node's token"), True


def _cause(error: SourceUnavailable) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted here ({cause.verify_message})"
    if isinstance(cause, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(cause, socket.gaierror):
        return "no such host"
    return f"no usable answer ({cause or error})"


def _advice(error: SourceUnavailable) -> str:
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return (
            "name its authority's certificate in agent.ca_file, and the host as it is named there"
        )
    return "is api.listen set there, the daemon running, and the way open (a firewall, a port)?"
