"""Reads recorded carbon traces: CSV, plain or gzip.

Lines that begin with `#` are comments (licence, attribution). Then one header line; columns by
name, others ignored:

    zone, timestamp_utc (ISO 8601 with Z, start of the interval),
    carbon_intensity_gco2eq_per_kwh (empty = missing at source), kind (average | marginal),
    emission_factor_type (direct | lifecycle), forecast_gco2_per_kwh (optional: the last forecast
    published before the interval)

A file with exogenous forecasts has `carbon_direct_g_per_kwh` instead of the last three: average,
direct (docs/forecast.md).

Invariant: a trace is one series: one zone, kind and factor, ascending, on one grid. Anything else
is refused with file and line; missing intervals stay gaps.
"""

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from wattmesh.errors import InputInvalid
from wattmesh.named_file import read_named
from wattmesh.telemetry.carbon import Signal

START = "timestamp_utc"
VALUE = "carbon_intensity_gco2eq_per_kwh"
FORECAST = "forecast_gco2_per_kwh"
DIRECT = "carbon_direct_g_per_kwh"
NEEDED = ("zone", START, VALUE, "kind", "emission_factor_type")
KINDS = ("average", "marginal")
GASES = {"direct": "CO2", "lifecycle": "CO2eq"}
"""From factor type to the gas that it counts."""

MOST_BYTES = 64 << 20
"""Uncompressed; a year of five-minute values is 6 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One recorded interval. `g_per_kwh`: None when missing at source, else as written."""

    start: datetime
    g_per_kwh: float | None
    forecast_g_per_kwh: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One recorded series. `step`: length of every interval."""

    path: Path
    signal: Signal
    step: timedelta
    rows: tuple[TraceRow, ...]

    @property
    def start(self) -> datetime:
        """Start of the recording."""
        return self.rows[0].start

    @property
    def end(self) -> datetime:
        """End of its last interval."""
        return self.rows[-1].start + self.step


def load(path: Path) -> Trace:
    """Read a trace.

    Raises:
        InputInvalid: it cannot be read, is malformed, or is not one series.
    """
    records = list(_records(path))
    if len(records) < 2:
        raise InputInvalid(f"{path} has {len(records)} intervals; a trace needs at least 2")
    rows = tuple(_row(path, line, record) for line, record in records)
    return Trace(
        path=path,
        signal=_signal(path, records),
        step=_step(path, rows, [line for line, _ in records]),
        rows=rows,
    )


def _text(path: Path) -> str:
    try:
        data = read_named(path, MOST_BYTES)
    except OSError as error:
        raise InputInvalid(f"{path} cannot be read as a trace: {error.strerror}") from error
    try:
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InputInvalid(f"{path} is larger than {MOST_BYTES >> 20} MiB; cut the trace")
        return data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise InputInvalid(f"{path} cannot be read as a trace: {error}") from error
    except UnicodeDecodeError as error:
        raise InputInvalid(f"{path} is not UTF-8 text (byte {error.start})") from error


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield (line number, fields by name) of every interval."""
    numbered = enumerate(_text(path).splitlines(), start=1)
    lines = [(n, line) for n, line in numbered if line.strip() and not line.startswith("#")]
    if not lines:
        raise InputInvalid(f"{path} is empty; a trace begins with the columns {', '.join(NEEDED)}")
    parsed = list(csv.reader(line for _, line in lines))
    header = parsed[0]
    implied: dict[str, str] = {}
    if DIRECT in header and VALUE not in header:
        header = [VALUE if name == DIRECT else name for name in header]
        implied = {"kind": "average", "emission_factor_type": "direct"}
    missing = [name for name in NEEDED if name not in (*header, *implied)]
    if missing:
        raise InputInvalid(f"{path}:{lines[0][0]} has no column {missing[0]}; it has {header}")
    for (number, _), values in zip(lines[1:], parsed[1:], strict=True):
        if len(values) != len(header):
            raise InputInvalid(
                f"{path}:{number} has {len(values)} fields, the header has {len(header)}"
            )
        yield number, implied | dict(zip(header, values, strict=True))


def _row(path: Path, line: int, record: Mapping[str, str]) -> TraceRow:
    return TraceRow(
        start=_moment(path, line, record[START]),
        g_per_kwh=_number(path, line, VALUE, record[VALUE]),
        forecast_g_per_kwh=_number(path, line, FORECAST, record.get(FORECAST, "")),
    )


def _moment(path: Path, line: int, text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InputInvalid(f"{path}:{line} {START} {text!r} is not an ISO 8601 time") from None
    if at.tzinfo is None:
        raise InputInvalid(f"{path}:{line} {START} {text!r} has no time zone; append Z for UTC")
    return at.astimezone(UTC)


def _number(path: Path, line: int, column: str, text: str) -> float | None:
    """Parse a number; "" is None. `believed` checks it later."""
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        raise InputInvalid(f"{path}:{line} {column} {text!r} is not a number") from None


def _signal(path: Path, records: Iterable[tuple[int, Mapping[str, str]]]) -> Signal:
    """The identity of the series, which must be the same in every line."""
    identity: tuple[str, str, str] | None = None
    for line, record in records:
        this = (record["zone"], record["kind"], record["emission_factor_type"])
        if identity is None:
            identity = this
        if this != identity:
            raise InputInvalid(
                f"{path}:{line} is {' '.join(this)}, the lines before are {' '.join(identity)}; "
                "a trace holds one series, so split the file"
            )
    zone, kind, factor = identity or ("", "", "")
    if not zone or ":" in zone or kind not in KINDS or factor not in GASES:
        raise InputInvalid(
            f"{path}: zone {zone!r}, kind {kind!r}, emission_factor_type {factor!r}; a trace needs "
            f"a zone without ':', kind {' or '.join(KINDS)}, and {' or '.join(GASES)}"
        )
    return Signal(provider="csv", zone=zone, kind=kind, factor=factor, gas=GASES[factor])


def _step(path: Path, rows: tuple[TraceRow, ...], lines: list[int]) -> timedelta:
    """The length of every interval: the shortest distance, of which gaps are multiples."""
    gaps = [after.start - before.start for before, after in itertools.pairwise(rows)]
    for gap, line in zip(gaps, lines[1:], strict=True):
        if gap <= timedelta():
            raise InputInvalid(f"{path}:{line} does not come after the line before; sort the trace")
    step = min(gaps)
    for gap, line in zip(gaps, lines[1:], strict=True):
        if gap % step:
            raise InputInvalid(
                f"{path}:{line} begins {gap} after the line before, not a multiple of the {step} "
                "between others; a trace has intervals of one length"
            )
    return step
