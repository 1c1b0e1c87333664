"""Recorded traces: read whole or refused with file and line."""

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from examples import demo
from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.csv_replay import CsvReplay
from wattmesh.integrations.carbon.reading.trace import load

HEADER = "zone,timestamp_utc,carbon_intensity_gco2eq_per_kwh,kind,emission_factor_type"
LINES = [
    "# a comment",
    HEADER + ",forecast_gco2_per_kwh",
    "GB,2023-06-14T00:00:00Z,164.0,average,direct,165",
    "GB,2023-06-14T00:30:00Z,,average,direct,167",
    "GB,2023-06-14T01:30:00Z,175.0,average,direct,",
]


def write(folder: Path, lines: list[str]) -> Path:
    """Write a trace."""
    path = folder / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_is_read_with_its_gaps(tmp_path: Path) -> None:
    """Comments are skipped, an empty value is None, a missing interval is a gap."""
    trace = load(write(tmp_path, LINES))
    assert [row.g_per_kwh for row in trace.rows] == [164.0, None, 175.0]
    assert [row.forecast_g_per_kwh for row in trace.rows] == [165.0, 167.0, None]
    assert trace.step == timedelta(minutes=30)
    assert (trace.start, trace.end) == (
        datetime(2023, 6, 14, tzinfo=UTC),
        datetime(2023, 6, 14, 2, tzinfo=UTC),
    )
    assert str(trace.signal) == "csv:GB:average:direct:CO2"


def test_gzip_reads_the_same(tmp_path: Path) -> None:
    """A compressed trace is the same trace, whatever its name."""
    plain = load(write(tmp_path, LINES))
    packed = tmp_path / "trace.bin"
    packed.write_bytes(gzip.compress(plain.path.read_bytes()))
    assert load(packed).rows == plain.rows


def test_a_lifecycle_trace_counts_other_gases(tmp_path: Path) -> None:
    """Lifecycle factors are CO2 equivalents: another signal, never mixed with direct CO2."""
    trace = load(write(tmp_path, [line.replace("direct", "lifecycle") for line in LINES]))
    assert (trace.signal.factor, trace.signal.gas) == ("lifecycle", "CO2eq")


def changed(old: str, new: str, line: int = 3) -> list[str]:
    """Give the lines with one of them changed."""
    lines = list(LINES)
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new)
    return lines


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "is empty"),
        (["# only", "# comments"], "is empty"),
        (LINES[:2], "has 0 intervals"),
        (LINES[:3], "has 1 intervals"),
        ([LINES[1].replace("zone", "area"), *LINES[2:]], "trace.csv:1 has no column zone"),
        ([LINES[1], LINES[2] + ",extra", *LINES[3:]], "trace.csv:2 has 7 fields, the header has 6"),
        (changed("2023-06-14T00:30:00Z", "14 June"), "trace.csv:4 timestamp_utc '14 June' is not"),
        (changed("00:30:00Z", "00:30:00"), "has no time zone; append Z"),
        (changed("00:30:00Z", "00:00:00Z"), "trace.csv:4 does not come after"),
        (changed("01:30:00Z", "01:10:00Z", 4), "trace.csv:5 begins 0:40:00 after"),
        (changed(",,", ",n/a,"), "trace.csv:4 carbon_intensity_gco2eq_per_kwh 'n/a' is not a numb"),
        (changed("167", "x"), "trace.csv:4 forecast_gco2_per_kwh 'x' is not a number"),
        (changed("GB", "FR"), "trace.csv:4 is FR average direct, the lines before are GB"),
        (changed("average", "marginal"), "a trace holds one series, so split the file"),
        ([line.replace("average", "mean") for line in LINES], "kind 'mean'"),
        ([line.replace("direct", "both") for line in LINES], "emission_factor_type 'both'"),
        ([line.replace("GB,", "G:B,") for line in LINES], "zone 'G:B'"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, lines: list[str], words: str) -> None:
    """Each mistake is named with file, line and what was found."""
    with pytest.raises(InputInvalid) as caught:
        load(write(tmp_path, lines))
    assert words in str(caught.value)


@pytest.mark.parametrize("cut", [2, 30, -4])
def test_a_truncated_gzip_is_refused(tmp_path: Path, cut: int) -> None:
    """Half a compressed file is no trace."""
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress("\n".join(LINES).encode())[:cut])
    with pytest.raises(InputInvalid, match="cannot be read as a trace"):
        load(path)


def test_a_flipped_byte_in_a_gzip_is_refused(tmp_path: Path) -> None:
    """The checksum of gzip is checked."""
    data = bytearray(gzip.compress("\n".join(LINES).encode()))
    data[-6] ^= 1
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(data)
    with pytest.raises(InputInvalid, match="cannot be read as a trace"):
        load(path)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    """A small file that unpacks to more than 64 MiB is not unpacked further."""
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"0" * (65 << 20), compresslevel=1))
    with pytest.raises(InputInvalid, match="larger than 64 MiB"):
        load(path)


def test_what_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    """A missing file, a folder and a binary file are each one sentence."""
    with pytest.raises(InputInvalid, match="No such file"):
        load(tmp_path / "none.csv")
    with pytest.raises(InputInvalid, match="no regular file"):
        load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00zone")
    with pytest.raises(InputInvalid, match="is not UTF-8 text"):
        load(tmp_path / "binary")


DEMO_DAYS = sorted(Path(demo.__file__).parent.glob("*.csv"))


@pytest.mark.parametrize("path", DEMO_DAYS, ids=lambda path: path.name)
def test_the_demo_days_are_whole_believed_and_attributed(path: Path) -> None:
    """A shipped day names its source and licence, has no gap, no refused value, and forecasts."""
    header = path.read_text().split("\nzone,")[0]
    assert "National Energy System Operator" in header
    assert "CC BY 4.0" in header
    trace = load(path)
    assert trace.end - trace.start >= timedelta(days=1)
    assert len(trace.rows) == (trace.end - trace.start) // trace.step
    assert all(row.forecast_g_per_kwh for row in trace.rows)
    replay = CsvReplay(path, zone="GB", plays_at=trace.start)
    batch = replay.history(trace.start, trace.end, now=trace.end)
    assert batch.refused == ()
    assert len(batch.points) == len(trace.rows)


def test_there_is_a_demo_day() -> None:
    """The demo has a recorded day to play."""
    assert DEMO_DAYS
