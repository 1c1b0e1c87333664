"""Columns that line up: a header in capitals, words to the left, numbers to the right. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from wattmesh.reconfig.ranges import clean

GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        right: numbers, aligned to the right.
        spare: order of removal on a narrow screen: the highest goes first; 0 always stays.
        least: cells to which its text may be cut, in the middle, once no column can be removed;
            0: it is never cut.
    """

    title: str
    right: bool = False
    spare: int = 0
    least: int = 0


def table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> list[Text]:
    """Lay out rows under their header; columns as wide as what is in them, nothing cut."""
    cells = [
        [each if isinstance(each, Text) else Text(clean(each)) for each in row] for row in rows
    ]
    widths = [
        max([cell_len(column.title), *(row[index].cell_len for row in cells)])
        for index, column in enumerate(columns)
    ]
    header = [Text(column.title, style="dim") for column in columns]
    return [_line(columns, widths, row) for row in (header, *cells)]


def fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], width: int
) -> tuple[list[Text], list[str]]:
    """Lay out rows in `width` cells, removing spare columns; give also the removed titles."""
    left, spared = list(range(len(columns))), list[str]()
    while True:
        kept = [columns[index] for index in left]
        lines = table(kept, [[row[index] for index in left] for row in rows])
        first = max(left, key=lambda index: columns[index].spare)
        over = max(each.cell_len for each in lines) - width
        if over <= 0:
            return lines, spared
        if not columns[first].spare:
            shown = [[row[index] for index in left] for row in rows]
            return table(kept, _cut(kept, shown, over)), spared
        left.remove(first)
        spared.append(columns[first].title)


def _cut(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], over: int
) -> list[list[str | Text]]:
    """Cut `over` cells, or as many as possible, from text that may be cut."""
    cut = [list(row) for row in rows]
    for index, column in enumerate(columns):
        widest = max((_width(row[index]) for row in rows), default=0)
        most = max(column.least, widest - over) if column.least else widest
        over -= widest - most
        for row in cut:
            row[index] = _shortened(row[index], most)
    return cut


def _width(cell: str | Text) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(cell)


def _shortened(cell: str | Text, most: int) -> str | Text:
    """Cut a cell in its middle, because names differ at their ends."""
    if _width(cell) <= most:
        return cell
    text, end = Text(clean(str(cell))), (most - 1) // 2
    style = cell.style if isinstance(cell, Text) else ""
    return Text(f"{text.plain[: most - 1 - end]}…{text.plain[-end:]}", style=style)


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[Text]) -> Text:
    """Pad one row's cells to their widths; the last one is left as it is."""
    line = Text()
    for index, (column, width, cell) in enumerate(zip(columns, widths, row, strict=True)):
        pad = " " * (width - cell.cell_len)
        if column.right:
            line.append(pad)
            line.append_text(cell)
        else:
            line.append_text(cell)
            line.append(pad if index < len(row) - 1 else "")
        line.append(GAP if index < len(row) - 1 else "")
    return line
