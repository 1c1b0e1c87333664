"""Tables of training configurations: read as CSV, and written again with predictions added.

Invariant: every row of the input is in the output, in order, with all its columns.
"""

import csv
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from io import StringIO
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattmesh.durable import write_text
from wattmesh.errors import InputInvalid
from wattmesh.named_file import read_named
from wattmesh.policies.parallelism.measured import (
    Measured,
    measured_rows,
    misstated,
    seconds_of,
    with_measurements,
)
from wattmesh.policies.parallelism.predict import CostModel, Predictions, physics_errors, predict
from wattmesh.policies.parallelism.row_fields import Row
from wattmesh.policies.parallelism.training_rows import read_rows

ADDED = (
    "pred_step_time_s",
    "pred_tokens_per_s_per_gpu",
    "pred_memory_gib",
    "pred_energy_j_per_token",
    "pred_low",
    "pred_high",
    "excluded_reason",
)
GIB = 2**30
MOST_TIMES_FASTER = 5.0
"""Predictions use some 40 % of a GPU's peak: a step so many times faster is beyond the hardware."""

MOST_TIMES_SLOWER = 100.0
"""No cluster that trains is so many times slower; milliseconds taken for seconds are a thousand."""

MOST_MEASURED = 2000
"""Work grows with the cube of what is known; this many take half a minute."""

ROWS_AT_ONCE = 4096
"""Each is compared with every run that is known: some 10 kB a row, while it is predicted."""

LARGEST_BYTES = 256 * 2**20
"""A larger table is refused: it would not fit into memory as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A table and its predictions.

    Attributes:
        names: of its columns. rows: all of them.
        kept: indices of the rows that are predicted; one entry of `predictions` for each.
        excluded: why others are not, by index.
    """

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    kept: NDArray[np.int64]
    excluded: Mapping[int, str]
    predictions: Predictions


def read_table(path: Path) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Read a CSV file with a line of column names; empty lines are no rows.

    Raises:
        InputInvalid: it cannot be read, has no rows, or a row has more fields than there are names.
    """
    try:
        text = read_named(path, LARGEST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise InputInvalid(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputInvalid(
            f"{path} is not UTF-8 text (its byte {error.start + 1}); save it as UTF-8"
        ) from error
    names, rows = _fields(path, text)
    if not any(names):
        raise InputInvalid(f"{path} has no line of column names")
    twice = sorted({name for name, count in Counter(names).items() if count > 1})
    if twice:
        raise InputInvalid(f"{path} names the columns {', '.join(map(repr, twice))} more than once")
    if not rows:
        raise InputInvalid(f"{path} has no rows under its column names")
    return names, rows


def _fields(path: Path, text: str) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Take a table apart.

    Raises:
        InputInvalid: it is no CSV, or a row has more fields than there are names.
    """
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    rows: list[Row] = []
    try:
        names = tuple(next(reader, ()))
        for entries in reader:
            if any(entries[len(names) :]):
                raise InputInvalid(
                    f"{path}, line {reader.line_num}: {len(entries)} fields, more than the "
                    f"{len(names)} names of columns"
                )
            del entries[len(names) :]
            if entries:
                rows.append(dict(zip_longest(names, entries, fillvalue="")))
    except csv.Error as error:
        raise InputInvalid(
            f"{path}, line {reader.line_num}, cannot be read as CSV: {error}"
        ) from error
    return names, tuple(rows)


def check_out(out: Path, *inputs: Path | None) -> None:
    """Refuse to write over a table that is read, by whatever name.

    Raises:
        InputInvalid: `out` is one of `inputs`, or a link to it.
    """
    for each in inputs:
        if each is not None and out.exists() and each.exists() and out.samefile(each):
            raise InputInvalid(f"--out {out} is the table {each} that is read; name another file")


def as_known(names: Sequence[str], rows: Sequence[Row]) -> Sequence[Row]:
    """Give rows under the names that are known: small letters, no blanks around them.

    Where a table has a column under its known name as well, that one counts.
    """
    known = {name: name.strip().lower() for name in names}
    renamed = {name: ours for name, ours in known.items() if ours != name and ours not in known}
    if not renamed:
        return rows
    return [{**row, **{ours: row[name] for name, ours in renamed.items()}} for row in rows]


def predict_table(names: Sequence[str], rows: Sequence[Row], model: CostModel) -> Predicted:
    """Predict the rows of a table; columns are known in any letters, with blanks around them."""
    kept: list[NDArray[np.int64]] = []
    excluded: dict[int, str] = {}
    found: list[Predictions] = []
    for first in range(0, max(1, len(rows)), ROWS_AT_ONCE):
        read = read_rows(as_known(names, rows[first : first + ROWS_AT_ONCE]))
        kept.append(read.kept + first)
        excluded |= {first + index: why for index, why in read.excluded.items()}
        found.append(predict(read, model))
    return Predicted(
        names=tuple(names),
        rows=tuple(rows),
        kept=np.concatenate(kept),
        excluded=excluded,
        predictions=_joined(found),
    )


def _joined(found: Sequence[Predictions]) -> Predictions:
    names = [each.name for each in fields(Predictions)]
    return Predictions(
        **{name: np.concatenate([getattr(each, name) for each in found]) for name in names}
    )


def corrected(model: CostModel, path: Path) -> tuple[CostModel, int]:
    """Correct a model by a table of measured steps: predictions of like runs move towards them.

    Returns:
        The corrected model, and how many rows correct it.

    Raises:
        InputInvalid: the table cannot be read, or no row of it states a time and can be predicted.
    """
    measured = measured_table(path, model)
    return with_measurements(model, measured), len(measured.seconds)


def measured_table(path: Path, model: CostModel) -> Measured:
    """Read a table of measured steps: the rows that state a time and can be predicted.

    Raises:
        InputInvalid: the table cannot be read, none of its rows can be used, or a row states what
            cannot have been measured.
    """
    names, found = read_table(path)
    rows = as_known(names, found)
    for number, row in enumerate(rows, 1):
        if why := misstated(row):
            raise InputInvalid(f"{path}, row {number}: {why}")
    timed = [number for number, row in enumerate(rows, 1) if seconds_of(row) > 0]
    if len(timed) > MOST_MEASURED:
        raise InputInvalid(
            f"{path} has {len(timed)} measured steps; at most {MOST_MEASURED} are taken: leave out "
            "repeats, or rows of other models and clusters"
        )
    measured = measured_rows([rows[number - 1] for number in timed], np.ones(len(timed)))
    if not len(measured.seconds):
        why = next(iter(measured.rows.excluded.values()), "no row states step_time_s")
        raise InputInvalid(f"{path}: no measured step can be used: {why}")
    setups, steps_s = measured.rows.setups, measured.seconds
    times = np.exp(physics_errors(setups, steps_s, model.parameters))
    for place, (index, over) in enumerate(zip(measured.rows.kept, times, strict=True)):
        if not 1 / MOST_TIMES_FASTER <= over <= MOST_TIMES_SLOWER:
            raise InputInvalid(
                f"{path}, row {timed[index]}: a step of {steps_s[place]:.3g} s is {over:.2g} times "
                "what the hardware is expected to take; step_time_s is in seconds, "
                "tokens_per_s_per_gpu of one GPU: correct the row, or leave it out"
            )
    return measured


def write_table(predicted: Predicted, path: Path) -> None:
    """Write a table with its predictions; what was under such names before is replaced.

    Raises:
        InputInvalid: it cannot be written there.
    """
    kept = {int(index): place for place, index in enumerate(predicted.kept)}
    names = [name for name in predicted.names if name not in ADDED] + list(ADDED)
    lines = []
    for index, row in enumerate(predicted.rows):
        added = dict.fromkeys(ADDED, "")
        if index in kept:
            added |= _numbers(predicted.predictions, kept[index])
        else:
            added["excluded_reason"] = predicted.excluded[index]
        lines.append([{**row, **added}.get(name, "") for name in names])
    # A file takes the place of what has its name: never of a device, or of a link.
    target = Path(os.path.realpath(path))
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise InputInvalid(f"cannot write {path}: it is not a file; name another one")
    try:
        write_text(target, _csv([names, *lines]))
    except OSError as error:
        raise InputInvalid(f"cannot write {path}: {error.strerror}; name another file") from error


def _numbers(predictions: Predictions, place: int) -> dict[str, str]:
    return {
        "pred_step_time_s": f"{predictions.step_s[place]:.6g}",
        "pred_tokens_per_s_per_gpu": f"{predictions.tokens_per_s_per_gpu[place]:.6g}",
        "pred_memory_gib": f"{predictions.memory_bytes[place] / GIB:.4g}",
        "pred_energy_j_per_token": f"{predictions.j_per_token[place]:.4g}",
        "pred_low": f"{predictions.low_s[place]:.6g}",
        "pred_high": f"{predictions.high_s[place]:.6g}",
    }


def _csv(lines: Sequence[Sequence[str]]) -> str:
    return "".join(map(_line, lines))


def _line(fields: Sequence[str]) -> str:
    """Write one line.

    Before Python 3.13 a carriage return is quoted only if lines end with one.
    """
    text = StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(fields)
    return text.getvalue().removesuffix("\r\n") + "\n"
