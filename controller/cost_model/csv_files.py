"""Tables of training configurations: read as CSV, and written again with predictions added.

Invariant: every row of the input is in the output, in order, with all its columns.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from wattmesh.durable import write_text
from wattmesh.errors import InputInvalid
from wattmesh.policies.parallelism.predict import CostModel, Predictions, predict
from wattmesh.policies.parallelism.training_rows import Row, TrainingRows, read_rows

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
LARGEST_BYTES = 256 * 2**20
"""A larger table is refused: it would not fit into memory as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A table and its predictions: `rows` with the columns `names`, `read` of them predicted."""

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    read: TrainingRows
    predictions: Predictions


def read_table(path: Path) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Read a CSV file with a line of column names.

    Raises:
        InputInvalid: it cannot be read, has no rows, or a row has more fields than there are names.
    """
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise InputInvalid(f"{path} is larger than {LARGEST_BYTES // 2**20} MiB; split it")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            rows = tuple({name: text or "" for name, text in row.items()} for row in reader)
            names = tuple(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputInvalid(f"cannot read {path}: {error}") from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputInvalid(f"{path} names {', '.join(twice)} more than once")
    for number, row in enumerate(rows, start=2):
        if "" in row and "" not in names:
            raise InputInvalid(f"{path}, line {number}: more fields than names of columns")
    if not rows:
        raise InputInvalid(f"{path} has no rows under its column names")
    return names, rows


def predict_table(names: Sequence[str], rows: Sequence[Row], model: CostModel) -> Predicted:
    """Predict the rows of a table."""
    read = read_rows(rows)
    return Predicted(
        names=tuple(names), rows=tuple(rows), read=read, predictions=predict(read, model)
    )


def write_table(predicted: Predicted, path: Path) -> None:
    """Write a table with its predictions; what was under such names before is replaced."""
    kept = {int(index): place for place, index in enumerate(predicted.read.kept)}
    names = [name for name in predicted.names if name not in ADDED] + list(ADDED)
    lines = []
    for index, row in enumerate(predicted.rows):
        added = dict.fromkeys(ADDED, "")
        if index in kept:
            added |= _numbers(predicted.predictions, kept[index])
        else:
            added["excluded_reason"] = predicted.read.excluded[index]
        lines.append([{**row, **added}.get(name, "") for name in names])
    write_text(path, _csv([names, *lines]))


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
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
