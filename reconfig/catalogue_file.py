"""Reads and writes the catalogue's TOML file (DESIGN.md 5.3).

Invariant: a written catalogue reads back equal, and a file with mistakes is refused with a list of
all of them. Its digest is the sha256 of the file's bytes.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from wattmesh import durable
from wattmesh.errors import InputInvalid, SettingsInvalid
from wattmesh.named_file import read_named
from wattmesh.reconfig.catalogue import (
    PAUSED,
    Catalogue,
    Equivalence,
    Evidence,
    OperatingPoint,
    PairCost,
    PowerScope,
    ProbeEvidence,
    Release,
    SwitchCost,
    SwitchSpend,
)
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.tables import Table
from wattmesh.toml_text import read_toml

NUMBERS = ("tokens_per_s", "power_w", "memory_gib")
"""The numbers of a point that have a source."""

SOURCES = ("measured", "simulated", "predicted", "assumed")

MOST_SPENDS = 200
"""Switches whose spends one file may list."""

_PHASES = ("save_s", "teardown_s", "groups_s", "build_s", "load_s", "verify_s", "agree_s")

_MAX_BYTES = 1 << 20
_NO_LAYOUT = Layout()

_MAYBE_IN_POINT = (
    *("gpu_power_w", "host_power_w", "parked_power_w", "spread", "speed_spread", "tolerance"),
)
"""Numbers of a point that may not be known."""

_OTHERS_IN_POINT = ("clock_mhz", "memory_gib", "probe", "fingerprint", "validated_at")
"""Keys of a point that may be missing, and are no such numbers."""


def load(path: Path) -> Catalogue:
    """Read a catalogue file.

    Raises:
        InputInvalid: the file cannot be read, or is not TOML.
        SettingsInvalid: it has mistakes; lists all of them with their key path.
    """
    try:
        data = read_named(path, _MAX_BYTES)
    except OSError as error:
        raise InputInvalid(f"catalogue {path} cannot be read: {error.strerror}") from error
    return parse(data, str(path))


def parse(data: bytes, where: str) -> Catalogue:
    """Parse the bytes of a file; `where` is its name in messages.

    Raises:
        InputInvalid: it is not TOML.
        SettingsInvalid: it has mistakes; lists all of them.
    """
    try:
        document = read_toml(data.decode())
    except ValueError as error:
        raise InputInvalid(f"catalogue {where} is not TOML: {error}") from error
    mistakes: list[tuple[str, str]] = []
    top = Table(document, "", mistakes)
    points = [_point(each) for each in top.tables("point")]
    switch = _switch(top.table("switch", required=False))
    job = top.table("job")
    top.finish()
    _check_points(job, points, switch)
    catalogue = _job(job, points, switch)
    if catalogue is None:
        raise SettingsInvalid(where, mistakes)
    return replace(catalogue, digest=hashlib.sha256(data).hexdigest())


def save(catalogue: Catalogue, path: Path) -> Catalogue:
    """Write a catalogue durably; return it as read back, with its digest.

    Raises:
        InputInvalid: it holds something that a file cannot represent.
        OSError: the disk is full or the folder not writable; the old file stays.
    """
    try:
        data = render(catalogue).encode()
    except UnicodeEncodeError as error:
        raise InputInvalid(
            f"catalogue {catalogue.job!r} holds text that is not valid Unicode"
        ) from error
    written = parse(data, str(path))
    durable.write_bytes(path, data)
    return written


def render(catalogue: Catalogue) -> str:
    """Format the file's text.

    Raises:
        InputInvalid: a number is not finite.
    """
    lines = [
        "# Operating points of one job, with the source of every number: measured on this",
        "# machine, simulated (a modelled device), predicted or assumed.",
        "[job]",
        _line("name", catalogue.job),
        _line("tokens_total", catalogue.tokens_total),
        _line("global_batch", catalogue.global_batch),
        _line("seq_len", catalogue.seq_len),
        _line("reference", catalogue.reference),
        _line("release", str(catalogue.release)),
        _line("power_scope", str(catalogue.power_scope)),
        _line("idle_power_w_per_gpu", catalogue.idle_power_w_per_gpu),
        _line("embodied_g_per_gpu_hour", catalogue.embodied_g_per_gpu_hour),
        _line("simulated", list(catalogue.simulated)),
        "",
        "[switch]",
        _line("layout_s", catalogue.switch.layout_s),
        _line("layout_energy_j", catalogue.switch.layout_energy_j),
        _line("clock_s", catalogue.switch.clock_s),
        _line("source", catalogue.switch.source),
    ]
    if catalogue.switch.reacquire_s is not None:
        lines.append(_line("reacquire_s", catalogue.switch.reacquire_s))
    lines += _spend_lines(catalogue.switch.spends)
    if catalogue.switch.pairs:
        lines += ["", "[switch.pairs]", *_pair_lines(catalogue.switch.pairs)]
    for point in catalogue.points:
        lines += ["", *_point_lines(point)]
    return "\n".join(lines) + "\n"


def _point_lines(point: OperatingPoint) -> list[str]:
    lines = ["[[point]]", _line("id", point.id), _line("gpus", point.gpus)]
    if point.clock_mhz is not None:
        lines.append(_line("clock_mhz", point.clock_mhz))
    lines.append(_line("layout", point.layout.to_dict()))
    lines.append(_line("tokens_per_s", point.tokens_per_s))
    lines.append(_line("power_w", point.power_w))
    lines += [
        _line(name, value)
        for name in _MAYBE_IN_POINT
        if (value := getattr(point, name)) is not None
    ]
    if point.samples:
        lines.append(_line("samples", point.samples))
    if point.dominated_by:
        lines.append(_line("dominated_by", point.dominated_by))
    if point.memory_gib is not None:
        lines.append(_line("memory_gib", point.memory_gib))
    # Before the evidence, so that a cut file never has a proof that does not expire.
    lines += _proof_lines(point)
    lines.append(_line("equivalence", str(point.equivalence)))
    lines.append(_line("evidence", str(point.evidence)))
    if point.sources:
        lines.append(_line("sources", point.sources))
    if point.probe is not None:
        found = {
            key: value for key, value in asdict(point.probe).items() if value not in (None, "")
        }
        lines.append(_line("probe", found))
    return lines


def _proof_lines(point: OperatingPoint) -> list[str]:
    """Write what a point was proven on, when and by whom, as far as it is known."""
    lines = []
    if point.fingerprint is not None and point.fingerprint.known:
        lines.append(_line("fingerprint", point.fingerprint.to_dict()))
    if point.validated_at is not None:
        lines.append(f"validated_at = {point.validated_at.astimezone(UTC).isoformat()}")
    if point.validated_by:
        lines.append(_line("validated_by", point.validated_by))
    if point.proven_as:
        lines.append(_line("proven_as", point.proven_as))
    return lines


def _pair_lines(pairs: Sequence[PairCost]) -> list[str]:
    """One line per origin: `"A" = { "B" = { seconds = 120.0, energy_j = 1.1e6 } }`."""
    origins = dict.fromkeys(pair.origin for pair in pairs)
    return [
        _line(
            _value("key", origin),
            {_value("key", pair.target): _cost(pair) for pair in pairs if pair.origin == origin},
        )
        for origin in origins
    ]


def _spend_lines(spends: Sequence[SwitchSpend]) -> list[str]:
    """Write what single switches spent, one line each; without any, nothing."""
    if not spends:
        return []
    rows = [f"  {_value('spent', _spend(each))}," for each in spends]
    return [
        "spent = [  # single switches, phase by phase, from which others are predicted",
        *rows,
        "]",
    ]


def _spend(spend: SwitchSpend) -> dict[str, object]:
    """Return one switch's numbers; those that are not known are left out."""
    found = asdict(spend)
    named = {"from": found.pop("origin"), "to": found.pop("target"), **found}
    return {name: value for name, value in named.items() if value is not None}


def _cost(pair: PairCost) -> dict[str, float]:
    """Return one pair's numbers; those that are not known are left out."""
    found = {
        "seconds": pair.seconds,
        "energy_j": pair.energy_j,
        "warm_s": pair.warm_s,
        "warm_energy_j": pair.warm_energy_j,
    }
    return {name: value for name, value in found.items() if value is not None}


def _line(key: str, value: object) -> str:
    return f"{key} = {_value(key, value)}"


def _value(key: str, value: object) -> str:
    """Format a value as TOML. A JSON string is a TOML basic string once DEL is escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputInvalid(f"catalogue: {key} = {value} is not a finite number")
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(key, each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(_line(name, each) for name, each in value.items())} }}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _job(job: Table, points: list[OperatingPoint], switch: SwitchCost) -> Catalogue | None:
    """Read `[job]` and build the catalogue; None when there was any mistake."""
    name, reference = job.text("name"), job.text("reference")
    tokens_total = job.whole("tokens_total")
    global_batch, seq_len = job.whole("global_batch", 0), job.whole("seq_len", 0)
    release = job.choice("release", Release, Release.HELD)
    power_scope = job.choice("power_scope", PowerScope, PowerScope.GPU)
    idle_power_w = job.number("idle_power_w_per_gpu", 0.0)
    embodied_g = job.number("embodied_g_per_gpu_hour", 0.0)
    simulated = job.texts("simulated")
    job.finish()
    if job.mistakes:
        return None
    return Catalogue(
        job=name,
        tokens_total=tokens_total,
        reference=reference,
        points=tuple(points),
        release=release,
        power_scope=power_scope,
        idle_power_w_per_gpu=idle_power_w,
        embodied_g_per_gpu_hour=embodied_g,
        global_batch=global_batch,
        seq_len=seq_len,
        switch=switch,
        simulated=simulated,
    )


def _switch(table: Table) -> SwitchCost:
    default = SwitchCost()
    cost = SwitchCost(
        layout_s=table.number("layout_s", default.layout_s),
        layout_energy_j=table.number("layout_energy_j", default.layout_energy_j),
        clock_s=table.number("clock_s", default.clock_s),
        source=table.text("source", default.source),
        reacquire_s=table.number("reacquire_s") if "reacquire_s" in table.values else None,
        pairs=tuple(_pairs(table.table("pairs", required=False))),
        spends=tuple(_spends(table)) if "spent" in table.values else (),
    )
    table.finish(also=("reacquire_s", "spent"))
    return cost


def _spends(switch: Table) -> Iterator[SwitchSpend]:
    """Read `[switch] spent`."""
    rows = switch.tables("spent")
    if len(rows) > MOST_SPENDS:
        switch.note("spent", f"{len(rows)} switches are more than the {MOST_SPENDS} that count")
    for row in rows[:MOST_SPENDS]:
        yield SwitchSpend(
            origin=row.text("from"),
            target=row.text("to"),
            state_bytes=row.whole("state_bytes", least=1),
            **{name: row.number(name) for name in _PHASES},
            first_s=_maybe(row, "first_s"),
            cold=row.flag("cold", default=False),
        )
        row.finish(also=("first_s",))


def _pairs(table: Table) -> Iterator[PairCost]:
    """Read `[switch.pairs]`, by origin, then target."""
    for origin in table.values:
        targets = table.table(origin)
        for target in targets.values:
            cost = targets.table(target)
            yield PairCost(
                origin=origin,
                target=target,
                seconds=cost.number("seconds"),
                energy_j=cost.number("energy_j"),
                warm_s=_maybe(cost, "warm_s"),
                warm_energy_j=_maybe(cost, "warm_energy_j"),
            )
            cost.finish(also=("warm_s", "warm_energy_j"))


def _point(table: Table) -> OperatingPoint:
    layout = _layout(table)
    point = OperatingPoint(
        id=table.text("id"),
        layout=layout,
        gpus=table.whole("gpus", layout.world_size, least=1),
        tokens_per_s=table.number("tokens_per_s", above=0),
        power_w=table.number("power_w", above=0),
        host_power_w=_maybe(table, "host_power_w"),
        gpu_power_w=_maybe(table, "gpu_power_w"),
        parked_power_w=_maybe(table, "parked_power_w"),
        samples=table.whole("samples", 0),
        spread=_maybe(table, "spread"),
        speed_spread=_maybe(table, "speed_spread"),
        dominated_by=table.text("dominated_by", ""),
        clock_mhz=table.whole("clock_mhz", least=1) if "clock_mhz" in table.values else None,
        memory_gib=table.number("memory_gib", above=0) if "memory_gib" in table.values else None,
        equivalence=table.choice("equivalence", Equivalence, Equivalence.NONE),
        evidence=table.choice("evidence", Evidence, Evidence.ASSUMED),
        sources=table.words("sources", NUMBERS, SOURCES),
        probe=_probe(table.table("probe")) if "probe" in table.values else None,
        fingerprint=_fingerprint(table) if "fingerprint" in table.values else None,
        validated_at=_moment(table, "validated_at"),
        validated_by=table.text("validated_by", ""),
        proven_as=table.text("proven_as", ""),
        tolerance=_maybe(table, "tolerance"),
    )
    table.finish(also=(*_OTHERS_IN_POINT, *_MAYBE_IN_POINT))
    return point


def _fingerprint(table: Table) -> Fingerprint | None:
    try:
        return Fingerprint.from_dict(table.table("fingerprint").values)
    except InputInvalid as error:
        table.note("fingerprint", str(error).removeprefix("fingerprint: "))
        return None


def _moment(table: Table, key: str) -> datetime | None:
    value = table.values.get(key)
    if value is None or (isinstance(value, datetime) and value.tzinfo is not None):
        return value
    table.note(key, "must be a time with its zone, like 2026-11-01T12:00:00Z")
    return None


def _maybe(table: Table, key: str) -> float | None:
    """Read a number that may not be known."""
    return table.number(key) if key in table.values else None


def _probe(table: Table) -> ProbeEvidence:
    found = ProbeEvidence(
        moved=table.number("moved"),
        allowed=table.number("allowed"),
        noise=table.number("noise") if "noise" in table.values else None,
        orders=table.whole("orders", 0),
        computed_in=table.text("computed_in", ""),
    )
    table.finish(also=("noise",))
    return found


def _layout(table: Table) -> Layout:
    values = table.table("layout").values
    try:
        layout = Layout.from_dict(values)
    except InputInvalid as error:
        table.note("layout", str(error).removeprefix("layout: "))
        return _NO_LAYOUT
    gpus = table.values.get("gpus", layout.world_size)
    if gpus != layout.world_size and isinstance(gpus, int):
        table.note("gpus", f"{gpus} must equal the layout's world size, {layout.world_size}")
    return layout


def _check_points(job: Table, points: list[OperatingPoint], switch: SwitchCost) -> None:
    ids = [point.id for point in points]
    for pair in switch.pairs:
        unknown = [each for each in (pair.origin, pair.target) if each not in {*ids, PAUSED}]
        for each in unknown:
            where = f"switch.pairs.{pair.origin}.{pair.target}"
            job.mistakes.append((where, f'"{each}" is not one of the points: {", ".join(ids)}'))
    for index, spend in enumerate(switch.spends):
        for each in (spend.origin, spend.target):
            if each not in ids:
                where = f"switch.spent[{index}]"
                job.mistakes.append((where, f'"{each}" is not one of the points: {", ".join(ids)}'))
    for index, point_id in enumerate(ids):
        if point_id == PAUSED:
            job.mistakes.append((f"point[{index}].id", f'"{PAUSED}" is no name for a point'))
        if point_id and point_id in ids[:index]:
            job.mistakes.append((f"point[{index}].id", f'"{point_id}" is taken by an earlier one'))
    reference = job.values.get("reference")
    job.mistakes.extend(_claims_too_much(points, reference))
    if isinstance(reference, str) and ids and reference not in ids:
        job.note("reference", f'"{reference}" is not one of the points: {", ".join(ids)}')


def _claims_too_much(points: list[OperatingPoint], reference: object) -> Iterator[tuple[str, str]]:
    """Find points that cannot be of their class, whatever was measured."""
    known = next((each.layout for each in points if each.id == reference), None)
    for index, each in enumerate(points):
        why = each.layout.other_function(known) if known is not None else ""
        if why and each.equivalence in (Equivalence.EXACT, Equivalence.NUMERICAL):
            yield f"point[{index}].equivalence", f'"{each.equivalence}" cannot be: {why}'
