"""Tables in and out: every row stays, in order, with all its columns; what is no table is told."""

import csv
import os
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parallelism.rows import RIGHT, Row, row
from wattmesh.controller.cost_model import csv_files, fitted
from wattmesh.controller.cost_model.csv_files import ADDED, predict_table, read_table, write_table
from wattmesh.errors import InputInvalid

HEAD, LINE = ",".join(RIGHT), ",".join(RIGHT.values())


def file(folder: Path, content: str | bytes) -> Path:
    """Write a table as it stands."""
    path = folder / "in.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def through(folder: Path, content: str | bytes) -> list[dict[str, str]]:
    """Read a table, predict it, write it, and read it as anybody would."""
    names, rows = read_table(file(folder, content))
    out = folder / "out.csv"
    write_table(predict_table(names, rows, fitted.shipped()), out)
    with out.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened, strict=True))


def refused(folder: Path, content: str | bytes) -> str:
    """Give the sentence for a table that cannot be read, without the path."""
    path = file(folder, content)
    with pytest.raises(InputInvalid) as told:
        read_table(path)
    assert str(path) in str(told.value)
    return str(told.value).replace(str(path), "FILE")


def test_a_right_row_gets_its_predictions(tmp_path: Path) -> None:
    """All columns, then the predictions: they fit to each other."""
    (found,) = through(tmp_path, f"{HEAD}\n{LINE}\n")
    assert list(found) == [*RIGHT, *ADDED]
    assert {name: found[name] for name in RIGHT} == RIGHT
    seconds = float(found["pred_step_time_s"])
    assert float(found["pred_low"]) < seconds < float(found["pred_high"])
    rate = 128 * 8192 / seconds / 64
    assert float(found["pred_tokens_per_s_per_gpu"]) == pytest.approx(rate, rel=1e-4)
    assert 10 < float(found["pred_memory_gib"]) < 80
    assert 0 < float(found["pred_energy_j_per_token"]) < 1
    assert found["excluded_reason"] == ""


def test_a_long_table_is_predicted_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows on either side of a border get what they get alone, and memory is that of a piece."""
    lines = [LINE if number % 3 else LINE.replace("H100", "H1000") for number in range(60)]
    table = "\n".join([HEAD, *lines])
    whole = through(tmp_path, table)
    many = [RIGHT] * 300

    def peak_bytes(rows: Sequence[Row], at_once: int) -> int:
        monkeypatch.setattr(csv_files, "ROWS_AT_ONCE", at_once)
        tracemalloc.start()
        predict_table(tuple(RIGHT), rows, fitted.shipped())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    one = peak_bytes(many[:1], 1000)
    assert peak_bytes(many, 50) - one < (peak_bytes(many, 1000) - one) / 2
    monkeypatch.setattr(csv_files, "ROWS_AT_ONCE", 7)
    assert through(tmp_path, table) == whole


def test_rows_stay_in_order_whatever_they_hold(tmp_path: Path) -> None:
    """Right and wrong ones in turn, an empty one, a short one, a formula, quotes and lines."""
    rows = [
        RIGHT,
        row(layers=""),
        dict.fromkeys(RIGHT, ""),
        row(row_id="=cmd|' /C calc'!A0", notes='a "b", c\r\nd\re'),
        row(gpu="abacus"),
        row(row_id="+1", notes="LoRA"),
    ]
    path = tmp_path / "in.csv"
    with path.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, quoting=csv.QUOTE_ALL)
        writer.writerow(RIGHT)
        writer.writerows(each.values() for each in rows)
        opened.write("short,llama3-8b\r\n")
    found = through(tmp_path, path.read_bytes())
    assert len(found) == 7
    for one, other in zip(rows, found[:6], strict=True):
        assert {name: other[name] for name in RIGHT} == one
    assert found[6]["row_id"] == "short"
    predicted = [bool(each["pred_step_time_s"]) for each in found]
    assert predicted == [True, False, False, True, False, True, False]
    for each in found:
        assert bool(each["excluded_reason"]) != bool(each["pred_step_time_s"])
    assert found[2]["excluded_reason"] == "layers is missing"


FIELDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\ufeff"), min_size=0, max_size=8
) | st.sampled_from(["a\rb", '"', "\n", ",", "=1+1", "\x00", " "])


def test_any_field_comes_out_as_it_went_in(tmp_path: Path) -> None:
    """NUL, lone carriage returns, quotes, line ends: in extra columns and in known ones."""
    odd = {"\r": 0, "\x00": 0, '"': 0, "\n": 0}

    @given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=4))
    def every(rows: list[tuple[str, str]]) -> None:
        path = tmp_path / "in.csv"
        with path.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.writer(opened, quoting=csv.QUOTE_ALL)
            writer.writerow(("model", "my column"))
            writer.writerows(rows)
        found = through(tmp_path, path.read_bytes())
        assert [(each["model"], each["my column"]) for each in found] == rows
        for one, other in rows:
            for character in odd:
                odd[character] += character in one + other

    every()
    assert min(odd.values()) > 0


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (f"\ufeff{HEAD}\n{LINE}\n", 1),
        (f"{HEAD}\r\n{LINE}\r\n{LINE}\r\n", 2),
        (f"{HEAD}\n{LINE}", 1),
        (f"{HEAD}\n\n{LINE}\n\n", 1),
        (f"{HEAD}\r{LINE}\r", 1),
    ],
    ids=["byte order mark", "CRLF", "no last line end", "empty lines", "CR"],
)
def test_marks_and_line_ends_do_not_matter(tmp_path: Path, content: str, rows: int) -> None:
    """Each way in which programs write a table."""
    found = through(tmp_path, content)
    assert len(found) == rows
    assert all(each["row_id"] == "R1" and each["pred_step_time_s"] for each in found)


def test_a_nul_byte_is_carried(tmp_path: Path) -> None:
    """In a column that nobody reads; in one that is read, the row says so."""
    assert through(tmp_path, f"{HEAD},x\n{LINE},a\x00b\n")[0]["x"] == "a\x00b"
    wrong = LINE.replace("llama3-8b,32", "llama3-8b,3\x002")
    assert r"'3\x002'" in through(tmp_path, f"{HEAD}\n{wrong}\n")[0]["excluded_reason"]


def test_predictions_of_before_are_replaced(tmp_path: Path) -> None:
    """A table that went through already comes out the same, with each column once."""
    once = through(tmp_path, f"{HEAD}\n{LINE}\n")
    again = through(tmp_path, (tmp_path / "out.csv").read_bytes())
    assert again == once
    stale = through(tmp_path, f"pred_low,{HEAD},excluded_reason\n-5,{LINE},old\n")
    assert list(stale[0]) == [*RIGHT, *ADDED]
    assert stale == once


def test_names_of_columns_are_known_in_any_letters(tmp_path: Path) -> None:
    """With blanks around them; they come out as they went in, and an exact name wins."""
    (right,) = through(tmp_path, f"{HEAD}\n{LINE}\n")
    (found,) = through(tmp_path, f"{HEAD.upper().replace(',', ' , ')}\n{LINE}\n")
    assert found[" TP "] == "2"
    assert [found[name] for name in ADDED] == [right[name] for name in ADDED]
    (found,) = through(tmp_path, f"TP,{HEAD}\nwrong,{LINE}\n")
    assert found["pred_step_time_s"] == right["pred_step_time_s"]


def test_empty_fields_beyond_the_names_are_dropped(tmp_path: Path) -> None:
    """As spreadsheets write them; what stands in one is not lost but refused, as ever."""
    (found,) = through(tmp_path, f"{HEAD}\n{LINE},,\n")
    assert found["pred_step_time_s"]


def test_a_row_is_predicted_alike_alone_and_among_thousands(tmp_path: Path) -> None:
    """Rows are corrected in parts, in one pass: the last is as the first."""
    one = row(row_id="alone", tp=4)
    many = [row(row_id=str(each), micro_batch=1 + each % 4) for each in range(2500)]
    lines = [",".join(each.values()) for each in (one, *many, one)]
    found = through(tmp_path, "\n".join([HEAD, *lines]))
    assert len(found) == 2502
    assert all(each["pred_step_time_s"] for each in found)
    (alone,) = through(tmp_path, f"{HEAD}\n{lines[0]}\n")
    assert found[0] == found[-1] == alone


def test_a_column_without_a_name_is_carried(tmp_path: Path) -> None:
    """As pandas writes its index."""
    (found,) = through(tmp_path, f",{HEAD}\n7,{LINE}\n")
    assert found[""] == "7"
    assert found["pred_step_time_s"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "FILE has no line of column names"),
        ("\n\n", "FILE has no line of column names"),
        (f"{HEAD}\n", "FILE has no rows under its column names"),
        (f"{HEAD}\n{LINE},one,two\n", "FILE, line 2: 29 fields, more than the 27 names of columns"),
        (f'{HEAD}\n"a\nb"\n{LINE},one\n', "FILE, line 4: 28 fields, more than the 27 names"),
        (f",{HEAD}\n7,{LINE},one\n", "FILE, line 2: 29 fields, more than the 28 names of columns"),
        (f"{HEAD},tp\n{LINE},2\n", "FILE names the columns 'tp' more than once"),
        (f"{HEAD},,\n{LINE},,\n", "FILE names the columns '' more than once"),
        (f'{HEAD}\n"{LINE}\n', "FILE, line 2, cannot be read as CSV: unexpected end of data"),
        (f'{HEAD}\n"a"b,{LINE}\n', "FILE, line 2, cannot be read as CSV: ',' expected after '\"'"),
        (f"{HEAD}\n{'x' * 10**6}\n", "FILE, line 2, cannot be read as CSV: field larger than"),
        (f"{HEAD}\n{LINE},caf\xe9\n".encode("latin-1"), "FILE is not UTF-8 text (its byte "),
        (f"{HEAD}\n{LINE}\n".encode("utf-16"), "FILE is not UTF-8 text (its byte 1); save it"),
    ],
)
def test_what_is_no_table_is_told(tmp_path: Path, content: str | bytes, why: str) -> None:
    """One sentence, with the line where there is one."""
    assert refused(tmp_path, content).startswith(why)


def _folder(path: Path) -> None:
    path.mkdir()


def _nothing(path: Path) -> None:
    """Leave it out."""


def _link_in_a_circle(path: Path) -> None:
    path.symlink_to(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("made", [_folder, _nothing, _link_in_a_circle, _endless, os.mkfifo])
def test_what_is_no_file_is_told(tmp_path: Path, made: Callable[[Path], None]) -> None:
    """None of them is waited for, or read without end."""
    path = tmp_path / "in.csv"
    made(path)
    with pytest.raises(InputInvalid, match=r"cannot read .*in\.csv: "):
        read_table(path)


def test_a_table_that_is_too_large_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its content is taken into memory."""
    monkeypatch.setattr(csv_files, "LARGEST_BYTES", 100)
    assert "larger than the 100 bytes" in refused(tmp_path, f"{HEAD}\n{LINE}\n")


def predicted() -> csv_files.Predicted:
    """Predict one right row."""
    return predict_table(tuple(RIGHT), [RIGHT], fitted.shipped())


@pytest.mark.parametrize("made", [_folder, _endless, os.mkfifo, _link_in_a_circle])
def test_nothing_but_a_file_is_replaced(tmp_path: Path, made: Callable[[Path], None]) -> None:
    """A device, a pipe and a folder stay what they were."""
    path = tmp_path / "in.csv"
    made(path)
    before = path.lstat()
    with pytest.raises(InputInvalid, match=r"cannot write .*in\.csv"):
        write_table(predicted(), path)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(InputInvalid, match="No such file or directory; name another file"):
        write_table(predicted(), tmp_path / "gone" / "out.csv")


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    """The file that it leads to is replaced."""
    target, link = tmp_path / "real.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    write_table(predicted(), link)
    assert link.is_symlink()
    assert target.read_text().startswith("row_id,")


def lost(before: list[Row], after: list[dict[str, str]]) -> list[int]:
    """List rows that are not at their place any more."""
    short = list(range(len(after), len(before)))
    pairs = enumerate(zip(before, after, strict=False))
    return short + [at for at, (one, other) in pairs if not one.items() <= other.items()]


def test_a_lost_row_is_caught(tmp_path: Path) -> None:
    """Sabotaged twin: one dropped, two swapped, a column gone."""
    rows = [row(row_id=str(each)) for each in range(3)]
    lines = "\n".join(",".join(each.values()) for each in rows)
    found = through(tmp_path, f"{HEAD}\n{lines}\n")
    assert lost(rows, found) == []
    assert lost(rows, found[:2]) == [2]
    assert lost(rows, [found[1], found[0], found[2]]) == [0, 1]
    assert lost(rows, [found[0], {**found[1], "tp": ""}, found[2]]) == [1]
