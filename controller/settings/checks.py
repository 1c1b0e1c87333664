"""Check what only several keys together, or the files they name, can show.

Invariant: every check yields (key path, sentence) pairs and none of them stops the others.
"""

import pwd
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from wattmesh.controller.journal.database.shown_url import secret_options, without_secrets
from wattmesh.controller.journal.database.sqlite_url import OPTIONS
from wattmesh.controller.settings.carbon_checks import carbon_mistakes
from wattmesh.controller.settings.expert_sweep import sweeps_in
from wattmesh.controller.settings.mistakes import Mistake, quoted
from wattmesh.controller.settings.model import (
    AgentSection,
    ApiSection,
    JournalSection,
    PolicySection,
    PowerSection,
    RunSection,
    Settings,
)
from wattmesh.controller.settings.node_meter_checks import node_meter_mistakes
from wattmesh.controller.settings.secrets import secret_mistakes, token_mistakes
from wattmesh.controller.settings.web_address import (
    HIGHEST_PORT,
    NO_USER,
    address_mistake,
    holds_user,
)
from wattmesh.errors import InputInvalid, SettingsInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.ranges import NAME
from wattmesh.reconfig.wire.link import unix_path
from wattmesh.telemetry.actuator.settings import mixed_groups

SOCKET_PATH_LIMIT = 107
"""Bytes that fit into sun_path (unix(7): 108 with the closing zero)."""

HIGHEST_UID = 2**32 - 1

SHARES_ROUNDED = 1e-9

POWER_READERS = {
    "library": ("nvml", "agents"),
    "rapl": ("nvml", "amd", "agents"),
    "node_meter": ("nvml", "amd", "agents"),
    "prometheus": ("nvml", "amd", "none"),
    "static": ("nvml", "amd", "none"),
}
"""Keys of [power], and the values of `source` that read them."""


def cross_check(settings: Settings) -> Iterator[Mistake]:
    """Name every mistake that no single key can show."""
    yield from _journal(settings.journal)
    yield from _addresses(settings)
    yield from _power(settings.power)
    yield from _site(settings)
    if settings.carbon is not None:
        yield from carbon_mistakes(settings.carbon)
    if settings.demand_response is not None:
        exogenous = settings.carbon.exogenous if settings.carbon else ()
        response = settings.demand_response
        yield from response.mistakes(
            exogenous,
            carbon=settings.carbon is not None,
            most_days=settings.actuator.obligation_days,
        )
    if not settings.policy.equivalence:
        yield "policy.equivalence", "[] allows no point at all; allowed: exact, numerical"
    window = PolicySection.model_fields["sla_window_s"].default
    if settings.policy.sla_throughput_share is None and settings.policy.sla_window_s != window:
        yield "policy.sla_window_s", "is only read with policy.sla_throughput_share; set that too"
    for name, run in settings.runs.items():
        if not NAME.fits(name):
            yield f"runs.{quoted(name)}", f"is no name that a run can have; write {NAME.what}"
        yield from _run(f"runs.{name}", run)
    for name in settings.budget:
        if name != "cluster" and name not in settings.runs:
            known = ", ".join(("cluster", *settings.runs))
            yield f"budget.{name}", f"belongs to no run of this file; allowed: {known}"


def listen_address(text: str) -> tuple[str, int] | None:
    """Split host:port; None when `text` is "" (off).

    Raises:
        InputInvalid: not host:port.
    """
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > HIGHEST_PORT:
        raise InputInvalid(
            f"{quoted(text)} is not host:port with a port up to {HIGHEST_PORT}; write "
            '"127.0.0.1:9464", or "" for off'
        )
    return host.strip("[]"), int(port)


def uid_of(owner: str) -> int | None:
    """Give the uid of a user name or number; None when there is no such user."""
    if owner.isdecimal() and owner.isascii():
        return int(owner) if int(owner) < HIGHEST_UID else None
    try:
        return pwd.getpwnam(owner).pw_uid
    except KeyError:
        return None


def _journal(journal: JournalSection) -> Iterator[Mistake]:
    scheme, separator, rest = journal.url.partition("://")
    if not separator or scheme.split("+")[0] not in {"sqlite", "postgresql"}:
        yield (
            "journal.url",
            f"{quoted(without_secrets(journal.url))} is not a database; write "
            "sqlite:////path/journal.db or postgresql+psycopg://user@host/name",
        )
    elif scheme.startswith("sqlite") and "?" in rest:
        yield ("journal.url", f"{quoted(journal.url)} {OPTIONS}")
    elif scheme.startswith("postgresql") and (
        secret_options(journal.url) or ":" in unquote(rest.partition("?")[0].rpartition("@")[0])
    ):
        yield (
            "journal.url",
            "holds a password, which does not belong into this file; put it into a file of mode "
            "0600 and name that in journal.password_file",
        )
    if journal.password_file is not None:
        yield from secret_mistakes("journal.password_file", journal.password_file)


def _addresses(settings: Settings) -> Iterator[Mistake]:
    length = len(bytes(settings.api.socket))
    if length > SOCKET_PATH_LIMIT:
        yield (
            "api.socket",
            f"{settings.api.socket} has {length} bytes; a Unix socket's path has at most "
            f"{SOCKET_PATH_LIMIT}",
        )
    for key, text in (
        ("metrics.listen", settings.metrics.listen),
        ("agent.metrics", settings.agent.metrics),
        ("api.listen", settings.api.listen),
    ):
        try:
            listen_address(text)
        except InputInvalid as error:
            yield key, str(error)
    api = settings.api
    yield from mixed_groups(api.group, api.operators_group, settings.actuator.group)
    yield from _agents(settings.api)
    yield from _agent(settings.agent)


def _agents(api: ApiSection) -> Iterator[Mistake]:
    """Check what agents of other nodes need: a certificate and its key; tokens are made later."""
    needed = {
        "api.tls_certificate": api.tls_certificate,
        "api.tls_key": api.tls_key,
        "api.agents_token_file": api.agents_token_file,
    }
    for key, path in needed.items():
        if not api.listen and path is not None:
            yield key, "is only read with api.listen; name the address for agents there"
        elif api.listen and path is None and key != "api.agents_token_file":
            yield key, "is missing: api.listen is served with TLS only"
        elif path is not None and key != "api.tls_certificate":
            yield from secret_mistakes(key, path)
    if api.listen and api.agents_token_file is not None:
        yield from token_mistakes("api.agents_token_file", api.agents_token_file)


def _agent(agent: AgentSection) -> Iterator[Mistake]:
    named = [("agent.controller", agent.controller)] if agent.controller else []
    named += [(f"agent.standbys[{index}]", each) for index, each in enumerate(agent.standbys)]
    for key, address in named:
        over_tls = address.startswith("https://")
        if over_tls and (wrong := address_mistake(address, "https://head-1:9465")):
            yield key, wrong
        elif over_tls and holds_user(address):
            yield key, f"{NO_USER}; the node's token is in agent.token_file"
        elif not over_tls and unix_path(address) is None:
            yield key, f"{quoted(address)} is neither https://host:port nor unix:///path"
    if any(each.startswith("https://") for _, each in named) and agent.token_file is None:
        yield "agent.token_file", "is missing: an https address asks for this node's token"
    if agent.token_file is not None:
        yield from secret_mistakes("agent.token_file", agent.token_file)
        yield from token_mistakes("agent.token_file", agent.token_file)


def _power(power: PowerSection) -> Iterator[Mistake]:
    if power.library is not None and not power.library.is_file():
        yield "power.library", f"{power.library} is no file; default the driver's own library"
    for name, readers in POWER_READERS.items():
        given = getattr(power, name) != PowerSection.model_fields[name].default
        if given and power.source not in readers:
            allowed = " or ".join(f'"{each}"' for each in readers)
            yield f"power.{name}", f"is only read when source = {allowed}"
    if power.node_meter is not None:
        yield from node_meter_mistakes("power.node_meter", power.node_meter)
    if power.prometheus is not None:
        wrong = address_mistake(power.prometheus.url, "http://prometheus.example:9090")
        if wrong:
            yield "power.prometheus.url", wrong
        elif holds_user(power.prometheus.url):
            yield (
                "power.prometheus.url",
                f"{NO_USER}; put them into the `.netrc` in the home folder of the service's user "
                "(mode 0600)",
            )


def _site(settings: Settings) -> Iterator[Mistake]:
    site = settings.site
    try:
        ZoneInfo(site.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = get_close_matches(site.timezone, available_timezones(), n=1)
        hint = f"; did you mean {near[0]}?" if near else "; write one like Europe/London, or UTC"
        yield "site.timezone", f"{quoted(site.timezone)} is not a time zone{hint}"
    if site.energy_boundary == "it" and site.pue != 1.0:
        yield "site.pue", f'{site.pue:g} is only read when energy_boundary = "facility"'
    for number, one in enumerate(site.market_based):
        key = f"site.market_based[{number}]"
        if one.ends <= one.starts:
            yield f"{key}.ends", f"{one.ends} is not after starts ({one.starts})"
        held = [each for each in site.market_based if each.starts <= one.starts < each.ends]
        shares = sum(each.share for each in held)
        if shares > 1 + SHARES_ROUNDED:
            yield f"{key}.share", f"at {one.starts} the shares add up to {shares:g}, more than 1"


def _run(key: str, run: RunSection) -> Iterator[Mistake]:
    if run.deadline is not None and run.deadline_after_s is not None:
        yield f"{key}.deadline_after_s", "and deadline exclude each other; keep one of them"
    if run.owner and uid_of(run.owner) is None:
        yield (
            f"{key}.owner",
            f"{quoted(run.owner)} is no user of this machine; write a name or a uid",
        )
    if run.catalogue is not None:
        yield from _catalogue(key, run.catalogue, run.baseline)
    elif run.baseline:
        yield f"{key}.baseline", f"{quoted(run.baseline)} needs a catalogue that has this point"
    if run.expert_sweep is not None:
        try:
            sweeps_in(run.expert_sweep)
        except InputInvalid as error:
            yield f"{key}.expert_sweep", str(error)


def _catalogue(key: str, path: Path, baseline: str) -> Iterator[Mistake]:
    """Check that the catalogue is readable and has the baseline among its points."""
    try:
        catalogue = catalogue_file.load(path)
    except SettingsInvalid as error:
        for inner, text in error.mistakes:
            yield f"{key}.catalogue", f"{path}: {inner} {text}"
        return
    except InputInvalid as error:
        yield f"{key}.catalogue", str(error)
        return
    points = [point.id for point in catalogue.points]
    if baseline and baseline not in points:
        yield f"{key}.baseline", f"{quoted(baseline)} is not in {path}; it has {', '.join(points)}"
