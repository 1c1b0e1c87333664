"""Heap checks are proven to be on before anybody is said to have lived, and deaths are counted."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.switch.launching import Ended, ended_ranks
from benchmarks.switch_heap import (
    CHECKS,
    ONE_TOO_MANY,
    NotCheckedError,
    layouts_of,
    prove,
    soak,
)


def test_the_checks_are_on_and_without_their_library_they_are_not() -> None:
    """Sabotaged twin: MALLOC_CHECK_ alone, as older pages advise, notices nothing."""
    prove(CHECKS)
    with pytest.raises(NotCheckedError, match="ended with 0 under the checks"):
        prove({"MALLOC_CHECK_": "3"})


def test_a_rank_that_damages_its_heap_is_told_by_signal_and_words(tmp_path: Path) -> None:
    """A real process under the checks, beside one that ends well."""
    processes = []
    for rank, code in enumerate(("", ONE_TOO_MANY)):
        with (tmp_path / f"rank-{rank}.log").open("wb") as log:
            command = [sys.executable, "-c", code]
            environment = {**os.environ, **CHECKS}
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    ended = {each.rank: each for each in ended_ranks(processes, tmp_path, float("inf"))}
    assert (ended[0].status, ended[1].status) == (0, -signal.SIGABRT)
    assert "free(): invalid pointer" in ended[1].words


def test_deaths_and_failures_are_counted_apart_and_the_rest_goes_on() -> None:
    """One launch that a signal ended, one that ended by an error, one that did the rest."""
    well = Ended(rank=0, status=0, words="")
    launches = [
        (5, [well, Ended(rank=2, status=-signal.SIGSEGV, words="boom")], "rebuilding"),
        (3, [Ended(rank=1, status=1, words="too late")], "loaded"),
        (2, [], "confirmed"),
    ]
    asked: list[int] = []

    def launched(
        _folder: Path, _preset: str, count: int, _environment: Mapping[str, str]
    ) -> tuple[int, Sequence[Ended], str]:
        asked.append(count)
        return launches[len(asked) - 1]

    died, failed, told = soak("tiny", 10, {}, launched)
    assert asked == [10, 5, 2]
    assert (died["rank"], died["by"], died["phase"], died["after_switches"]) == (
        (2, "SIGSEGV", "rebuilding", 5)
    )
    assert (failed["what"], failed["by"]) == ("tiny: a rank failed", "status 1")
    assert (told["switches"], told["deaths"], told["failures"], told["launches"]) == (10, 1, 1, 3)


def test_no_time_left_is_neither_a_death_nor_all_switches() -> None:
    """What was reached is told as it is."""
    told = list(soak("tiny", 10, {}, lambda *_: (4, [Ended(rank=-1, status=0, words="")], "")))
    assert [(row["switches"], row["of"], row["deaths"]) for row in told] == [(4, 10, 0)]


def test_a_dense_model_goes_through_layouts_without_experts() -> None:
    """And no layout follows itself, which were no switch."""
    dense = layouts_of("tiny")
    assert {each.ep for each in dense} == {1}
    assert all(one != other for one, other in zip(dense, [*dense[1:], dense[0]], strict=True))
    assert {each.ep for each in layouts_of("tiny-moe")} > {1}
