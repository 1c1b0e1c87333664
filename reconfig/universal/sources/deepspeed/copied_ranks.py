"""Notices tensor-parallel ranks whose files are copies of another rank's.

No file of DeepSpeed's says of which rank it is. Copied files fit, and would be joined as slices.
"""

import math
from collections.abc import Sequence

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.index import Index
from wattmesh.reconfig.universal.sources import ties

_BEGINNING = 4096
"""Elements that are compared before whole slices are: they tell most ranks apart."""


class CopiedRanks:
    """Groups of ranks whose slices were all the same so far, by stage."""

    def __init__(self, files: Files, both: Index) -> None:
        """Know of no slice yet; `both` is the index of all ranks' rows."""
        self._files, self._both = files, both
        self._reader = Reader(both, files)
        self._alike: dict[str, list[list[int]]] = {}

    def look(self, stage: str, rows: Sequence[int]) -> None:
        """Compare one tensor's slices; `rows` are the index's, by tensor-parallel rank."""
        if not any(math.prod(self._both.entries[row].shape) for row in rows):
            return
        found: list[list[int]] = []
        for group in self._alike.get(stage, [list(range(len(rows)))]):
            buckets: dict[tuple[tuple[int, ...], bytes], list[int]] = {}
            for rank in group:
                buckets.setdefault(self._beginning(rows[rank]), []).append(rank)
            for bucket in buckets.values():
                found += self._same(bucket, rows)
        self._alike[stage] = [group for group in found if len(group) > 1]

    def refuse(self) -> None:
        """Refuse ranks that hold the same of everything.

        Raises:
            InputInvalid: there are some; the message names the stage and two of them.
        """
        for stage, groups in self._alike.items():
            for one, other, *_ in groups:
                raise InputInvalid(
                    f"{stage}: tensor-parallel ranks {one} and {other} hold the same of all slices "
                    "of parameters and slots; one rank's files are copies of the other's."
                )

    def _beginning(self, row: int) -> tuple[tuple[int, ...], bytes]:
        shape = self._both.entries[row].shape
        if not math.prod(shape):
            return shape, b""
        few = (*(1 for _ in shape[1:]), min(shape[-1], _BEGINNING))
        return shape, self._reader.read(row, Box((0,) * len(shape), few)).tobytes()

    def _same(self, ranks: Sequence[int], rows: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = []
        for rank in ranks:
            for group in found:
                if not ties.first_difference(self._files, self._both, rows[group[0]], rows[rank]):
                    group.append(rank)
                    break
            else:
                found.append([rank])
        return found
