"""What `wattmesh doctor` looks at: each check gives a finding, and what to do when it is bad.

Invariant: a check never raises and never changes anything; what it cannot know it calls unknown,
which is not ok.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wattmesh.controller.cli.client import DaemonConnection
from wattmesh.controller.cli.doctor import (
    actuator_checks,
    install_checks,
    journal_checks,
    power_checks,
    service_checks,
    tls_checks,
)
from wattmesh.controller.cli.doctor.findings import Finding, ok, problem, unknown
from wattmesh.controller.cli.formats import plural
from wattmesh.controller.cli.services.install import UNIT, ServiceUnit
from wattmesh.controller.process import kernel_clock
from wattmesh.controller.settings import read as reader
from wattmesh.controller.settings.read import Settings
from wattmesh.errors import SettingsInvalid, WattmeshError
from wattmesh.quantities import duration, figures

GIB = 1 << 30
LEAST_FREE_GIB = 1.0
CLOCK_TOLERANCE_S = 2.0
BUILT = datetime(2026, 1, 1, tzinfo=UTC)
"""No machine that runs this version has a right clock before this."""


def examine(config: Path, socket: str | None) -> Iterator[Finding]:
    """Run every check; `socket` overrides the one in the settings."""
    settings, finding = _settings(config)
    yield finding
    if settings is not None:
        yield from service_checks.services(settings, config)
    if settings is not None and _is_node(settings) and not socket:
        yield from _of_node(settings)
        return
    if settings is not None:
        if settings.agent.controller.startswith("https:"):
            yield from tls_checks.controllers(settings.agent)
        yield from _of_settings(settings)
        socket = socket or str(settings.api.socket)
    view, finding = _daemon(socket)
    yield finding
    if view is not None:
        yield from _of_status(view)
        if settings is not None:
            yield from install_checks.running(settings, view)
    vouched = settings is not None and settings.journal.trust_clock
    kept = kernel_clock.synchronised()
    yield clock(datetime.now(UTC), view, kept or (None if vouched else kept))


def _settings(config: Path) -> tuple[Settings | None, Finding]:
    try:
        return reader.load(config, by_a_person=True), ok("settings", f"{config} has no mistakes")
    except SettingsInvalid as error:
        first = "; ".join(f"{key} {text}" for key, text in error.mistakes[:2])
        more = len(error.mistakes) - 2
        tail = f"; and {more} more" if more > 0 else ""
        text = f"{config} has {plural(len(error.mistakes), 'mistake')}: {first}{tail}"
        return None, problem("settings", text, f"run `wattmesh settings check {config}`, mend it")


def _of_settings(settings: Settings) -> Iterator[Finding]:
    yield from install_checks.groups(settings.api)
    yield from install_checks.units()
    yield from journal_checks.journal(settings)
    yield disk(_journal_folder(settings.journal.url))
    yield from power_checks.power(settings)
    yield from actuator_checks.actuator(settings.actuator)
    yield from install_checks.acting(settings)
    if settings.api.tls_certificate and settings.api.tls_key:
        pair = settings.api.tls_certificate, settings.api.tls_key
        yield tls_checks.certificate(*pair, datetime.now(UTC))
    for name, run in settings.runs.items():
        if run.catalogue is not None:
            yield catalogue(name, run.catalogue)
    if settings.carbon is None:
        yield problem("grid signal", "none is set, so nothing is booked", "add [carbon.accounting]")


def _is_node(settings: Settings) -> bool:
    """Say whether the daemon is on other machines alone: nothing of one is named or stands here."""
    if not settings.agent.controller.startswith("https:") or settings.api.listen:
        return False
    unit = install_checks.UNITS / UNIT[ServiceUnit.DAEMON]
    return not (os.path.exists(unit) or os.path.lexists(settings.api.socket))


def _of_node(settings: Settings) -> Iterator[Finding]:
    """Check a node whose daemon is on another machine: no journal, signal or daemon is here."""
    yield disk(_nearest_existing(settings.agent.outbox.parent))
    yield from actuator_checks.actuator(settings.actuator)
    yield from power_checks.own_meter(settings)
    yield from install_checks.units()
    yield from tls_checks.controllers(settings.agent)
    vouched = settings.journal.trust_clock
    kept = kernel_clock.synchronised()
    yield clock(datetime.now(UTC), None, kept or (None if vouched else kept))


def _journal_folder(url: str) -> Path:
    """Give the folder that must have room: the database's, else where the daemon keeps state."""
    path = Path(url.partition("///")[2]) if url.startswith("sqlite") else Path("/var/lib/wattmesh")
    return _nearest_existing(path.parent if url.startswith("sqlite") else path)


def _nearest_existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if os.path.exists(each))  # or closed


def disk(folder: Path) -> Finding:
    """Check the room left beside the journal."""
    usage = shutil.disk_usage(folder)
    text = f"{figures(usage.free / GIB)} GiB free of {figures(usage.total / GIB)} at {folder}"
    if usage.free < LEAST_FREE_GIB * GIB:
        return problem("disk", text, "make room: below 1 GiB the journal may stop at any moment")
    return ok("disk", text)


def catalogue(name: str, path: Path) -> Finding:
    """Check one run's catalogue."""
    # The reader lives with the trainer's side; doctor only asks it.
    from wattmesh.reconfig.catalogue_file import load  # noqa: PLC0415

    check = f"catalogue {name}"
    try:
        found = load(path)
    except (WattmeshError, OSError) as error:
        return problem(check, str(error), f"mend {path}, or profile it again")
    usable = sum(point.evidence == "validated" for point in found.points)
    text = f"{plural(len(found.points), 'point')}, {usable} validated"
    if usable < 2:
        return problem(check, text, "only validated points are switched to: validate another one")
    return ok(check, text)


def _daemon(socket: str | None) -> tuple[Mapping[str, Any] | None, Finding]:
    if not socket:
        return None, unknown("daemon", "its socket is not known", "mend the settings first")
    try:
        view = DaemonConnection(socket, timeout_s=5).get("/v1/status")
    except WattmeshError as error:
        sentence, _, advice = str(error).partition(": ")
        return None, problem("daemon", sentence, advice.rstrip("."))
    cycle = view["cycle"]
    age_s, every_s = cycle["age_s"], cycle["every_s"]
    if age_s is None:  # if this lasts, the daemon's own sentences say why
        text = f"pid {view['pid']} answers, and has ended no cycle yet (every {every_s:g} s)"
        return view, unknown("daemon", text, "ask again in a few seconds")
    if age_s > 5 * every_s + 5:
        return view, problem(
            "daemon",
            f"it answers, but its newest cycle ended {duration(age_s)} ago (every {every_s:g} s)",
            "read `journalctl -u wattmesh -n 50`, then restart it",
        )
    return view, ok("daemon", f"pid {view['pid']}, cycle {duration(age_s)} ago, {view['mode']}")


def _of_status(view: Mapping[str, Any]) -> Iterator[Finding]:
    """Check what the daemon says of its sources; a trouble named here is not repeated below."""
    known = []
    for label, line in signals(view).items():
        names = (line["provider"], line["trouble"].rstrip(".") or line["provider"])
        told = next((each for each in view["trouble"] if each.startswith(names)), "")
        if told:  # the daemon alone decides what is amiss
            known.append(told)
            what, _, advice = told.partition(". ")
            yield problem(label, what, advice)
        else:
            age = "not heard yet" if line["age_s"] is None else f"{duration(line['age_s'])} old"
            note = f" ({line['trouble'].rstrip('.')})" if line["trouble"] else ""
            yield ok(label, f"{line['signal']}, {age}{note}")
    power = view["power"]
    if power["trouble"] or power["gpus"] < power["expected"]:
        text = power["trouble"] or f"{power['gpus']} of {power['expected']} GPUs answer"
        yield problem("power", text, "look at the GPUs that are missing with `nvidia-smi -L`")
    elif power["source"] == "agents" and not power["gpus"]:
        text = "no agent has delivered anything yet, so no GPU is read"
        yield unknown("power", text, "`wattmesh doctor` on a node says why its agent does not")
    elif power["source"]:
        simulated = " (simulated)" if power["simulated"] else ""
        yield ok("power", f"{plural(power['gpus'], 'GPU')} read by {power['source']}{simulated}")
    for sentence in view["trouble"]:
        what, _, advice = sentence.partition(": ")
        if sentence not in known:
            yield problem("daemon says", what, advice or "act on it")


def signals(view: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Give the grid signals by their use; a signal that serves both uses comes once."""
    decision, booked = view["carbon"], view["accounting"]
    if decision and booked and decision["signal"] == booked["signal"]:
        return {"grid signal": decision}
    lines = {"decision signal": decision, "booked signal": booked}
    return {label: line for label, line in lines.items() if line is not None}


def clock(now: datetime, view: Mapping[str, Any] | None, kept: bool | None) -> Finding:
    """Check the wall clock: plausible, in step with the daemon's, kept by a time service.

    Args:
        now: what the wall clock reads.
        view: the daemon's status.
        kept: whether the kernel calls it synchronised; None: it does not say, or is not believed.
    """
    if now < BUILT:
        return problem("clock", f"it says {now:%Y-%m-%d}", "set it, and run a time service")
    if view is not None:
        apart_s = abs((now - datetime.fromisoformat(view["at"])).total_seconds())
        if apart_s > CLOCK_TOLERANCE_S + 5:
            return problem(
                "clock", f"{duration(apart_s)} apart from the daemon's", "see `timedatectl`"
            )
    if kept is False:
        return unknown(
            "clock",
            f"{now:%Y-%m-%d %H:%M:%S} UTC, and the kernel calls it unsynchronised",
            "see that a time service runs (`timedatectl`); chrony needs `rtcsync`",
        )
    known = "synchronised" if kept else "no service that keeps it right is known here"
    return ok("clock", f"{now:%Y-%m-%d %H:%M:%S} UTC ({known})")
