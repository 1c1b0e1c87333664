"""What of a run's figures is written, when, and that nothing of it reaches the script."""

import logging
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.answering import Answers, answering, dead_socket
from tests.daemon.waiting import wait_for
from tests.hook.conftest import socket_path
from tests.laws.processes import loaded_after
from wattmesh.reconfig.client import figure_log
from wattmesh.reconfig.client.figure_log import FigureLog, LoggedFigures, figures
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import Spent

__all__ = ["socket_path"]

PATH = "/v1/runs/6d1c9d0e/spent"
SPENT = Spent(
    energy_j=7200.0,
    carbon_g=0.5,
    signal="neso:GB:average:direct:CO2",
    unpriced_j=100.0,
    unobserved_s=30.0,
    upper_j=21_000.0,
    flags=("provisional", "simulated"),
)


@dataclass(kw_only=True)
class Measured:
    """A run by a rank's handle."""

    run: str = "6d1c9d0e"
    leads: bool = True


@dataclass(kw_only=True)
class Kept:
    """A tracker that keeps what it is told, or fails."""

    fails: bool = False
    rows: list[LoggedFigures] = field(default_factory=list)

    def write(self, figures: LoggedFigures) -> None:
        """Keep one step."""
        if self.fails:
            raise OSError(28, "No space left on device")
        self.rows.append(figures)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_log, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(figure_log, "CALL_LIMIT_S", 1.0)


@pytest.fixture
def daemon(socket_path: Path) -> Iterator[Answers]:
    """A server that answers what a run has spent."""
    with answering(socket_path, {PATH: (200, SPENT.to_json())}) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    """Wait for threads that `close` left behind: what they say late is of the test before."""
    yield
    wait_for(
        lambda: all(each.name != "wattmesh-figures" for each in threading.enumerate()),
        "the end of every thread",
    )


def opened(socket_path: Path, kept: Kept, run: Measured | None = None) -> FigureLog:
    """Make a log that asks as often as it may."""
    link = DaemonLink(str(socket_path))
    made = FigureLog(run or Measured(), kept, every_s=1.0, link=link)
    made._every_s = 0.02
    return made


def test_everything_that_is_known_has_its_flags_beside_it() -> None:
    """Joules, grams, what has no grams, what nobody read, each flag, signal and boundary."""
    told = figures(SPENT, 12)
    assert told is not None
    assert told.step == 12
    assert told.numbers == {
        "wattmesh/energy_j": 7200.0,
        "wattmesh/carbon_g": 0.5,
        "wattmesh/energy_without_grams_j": 100.0,
        "wattmesh/unobserved_gpu_s": 30.0,
        "wattmesh/unobserved_at_most_j": 21_000.0,
        "wattmesh/is_estimated": 0.0,
        "wattmesh/is_provisional": 1.0,
        "wattmesh/is_simulated": 1.0,
    }
    assert told.words["wattmesh/signal"] == SPENT.signal
    assert told.words["wattmesh/flags"] == "provisional+simulated"
    assert "wattmesh/why_unknown" not in told.words


@pytest.mark.parametrize("carbon_g", [None, math.nan, math.inf])
def test_unknown_is_never_zero(carbon_g: float | None) -> None:
    """Grams that are not known, or are no number, have no row and no signal; joules have theirs."""
    told = figures(Spent(energy_j=5.0, carbon_g=carbon_g, signal="s", why_unknown="no price"), 1)
    assert told is not None
    assert "wattmesh/carbon_g" not in told.numbers
    assert "wattmesh/signal" not in told.words
    assert told.numbers["wattmesh/energy_j"] == 5.0
    assert told.words["wattmesh/why_unknown"] == "no price"
    assert figures(Spent(unobserved_s=60.0, upper_j=9.0, why_unknown="nobody reads it"), 1) is None


def test_a_text_that_is_no_utf8_keeps_no_figure_away() -> None:
    """JSON may hold half a pair of surrogates, which TensorBoard and MLflow do not take."""
    told = figures(replace(SPENT, signal="a\ud800b"), 1)
    assert told is not None
    assert told.words["wattmesh/signal"] == "a?b"


def test_each_new_answer_is_written_once_at_the_newest_step(
    daemon: Answers, socket_path: Path
) -> None:
    """100,000 steps with one answer are one row; grams that shrank by a restatement are another."""
    kept = Kept()
    with opened(socket_path, kept) as log:
        log(1)
        wait_for(lambda: len(kept.rows) == 1, "the first row")
        asked = len(daemon.asked)
        for step in range(2, 100_001):
            log(step)
        wait_for(lambda: len(daemon.asked) > asked + 2, "more questions")
        assert len(kept.rows) == 1
        restated = Spent(energy_j=7200.0, carbon_g=0.4, signal=SPENT.signal)
        daemon.answers = {PATH: (200, restated.to_json())}
        wait_for(lambda: len(kept.rows) == 2, "the restated row")
    grams = [each.numbers["wattmesh/carbon_g"] for each in kept.rows]
    assert grams == [0.5, 0.4]
    assert kept.rows[1].step == 100_000


def test_a_reason_that_holds_no_more_is_taken_back_once(daemon: Answers, socket_path: Path) -> None:
    """Trackers keep the newest text: without that, known grams would stand beside `no price`."""
    reason = "wattmesh/why_unknown"
    unpriced = Spent(energy_j=5.0, why_unknown="no price")
    daemon.answers = {PATH: (200, unpriced.to_json())}
    kept = Kept()
    with opened(socket_path, kept) as log:
        log(1)
        wait_for(lambda: len(kept.rows) == 1, "the row without grams")
        daemon.answers = {PATH: (200, SPENT.to_json())}
        wait_for(lambda: len(kept.rows) == 2, "a row with grams")
        daemon.answers = {PATH: (200, replace(SPENT, carbon_g=0.6).to_json())}
        wait_for(lambda: len(kept.rows) == 3, "another one")
    assert [each.words.get(reason) for each in kept.rows] == ["no price", figure_log.NO_MORE, None]


def test_what_another_launch_or_rank_said_last_is_taken_back(
    daemon: Answers, socket_path: Path
) -> None:
    """The first row says all words, and so does the first one after another rank has led."""
    kept, run = Kept(), Measured()
    with opened(socket_path, kept, run) as log:
        log(1)
        wait_for(lambda: len(kept.rows) == 1, "the first row")
        daemon.answers = {PATH: (200, replace(SPENT, carbon_g=0.6).to_json())}
        wait_for(lambda: len(kept.rows) == 2, "another one")
        run.leads = False
        log(2)
        run.leads = True
        log(3)
        wait_for(lambda: len(kept.rows) == 3, "the first row after another rank has led")
    assert ["wattmesh/boundary" in each.changed for each in kept.rows] == [True, False, True]
    assert set(kept.rows[0].words) == set(kept.rows[2].words) == set(figure_log.WORDS)
    assert kept.rows[0].words["wattmesh/why_unknown"] == figure_log.NO_MORE


def test_what_came_last_is_written_when_it_is_closed(daemon: Answers, socket_path: Path) -> None:
    """`close` asks once more, and safely twice; afterwards a call does nothing."""
    kept = Kept()
    log = opened(socket_path, kept)
    log._every_s = 60.0
    log(3)
    wait_for(lambda: len(kept.rows) == 1, "the first row")
    daemon.answers = {PATH: (200, Spent(energy_j=9000.0).to_json())}
    log(8)
    log.close()
    log.close()
    log(9)
    assert [each.step for each in kept.rows] == [3, 8]


@pytest.mark.parametrize(
    "answer",
    [
        (404, {"error": "there is no such run", "kind": "not_found"}),
        (403, {"error": "it is another user's", "kind": "refused"}),
        (500, {"error": "oops"}),
        (200, b"<html>"),
        (200, {"energy_j": "many"}),
        (200, {"energy_j": {"a": 1}}),
    ],
)
def test_a_daemon_that_cannot_say_is_told_of_once(
    answer: tuple[int, Any], socket_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user's run, an unknown one, nonsense: no row, and one sentence."""
    kept = Kept()
    with answering(socket_path, {PATH: answer}) as server, opened(socket_path, kept) as log:
        log(1)
        wait_for(lambda: len(server.asked) > 8, "many questions")
    assert kept.rows == []
    (line,) = [each.getMessage() for each in caplog.records if "is logged" in each.getMessage()]
    assert line.endswith("(training goes on; this is said once)")


def test_a_daemon_that_is_gone_costs_nothing_and_comes_back(
    socket_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead socket: one sentence; when the daemon is back, rows."""
    dead_socket(socket_path)
    kept = Kept()
    with opened(socket_path, kept) as log:
        log(1)
        wait_for(lambda: "is logged" in caplog.text, "the sentence")
        socket_path.unlink()
        with answering(socket_path, {PATH: (200, SPENT.to_json())}):
            wait_for(lambda: len(kept.rows) == 1, "a row")
    assert caplog.text.count("is logged") == 1


def test_a_daemon_that_hangs_holds_nobody(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call returns while the daemon says nothing, and so does `close`."""
    monkeypatch.setattr(figure_log, "CALL_LIMIT_S", 0.1)
    kept = Kept()
    with answering(socket_path, {PATH: (200, None)}) as server:
        log = opened(socket_path, kept)
        log(1)
        wait_for(lambda: len(server.asked) > 0, "a question")
        for step in range(1000):
            log(step)
        assert not server.stopping.is_set()
        log.close()
    assert kept.rows == []


def test_a_tracker_that_fails_is_told_of_once_and_tried_again(
    daemon: Answers, socket_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk raises nothing into the script; the row comes when there is room."""
    kept = Kept(fails=True)
    with opened(socket_path, kept) as log:
        log(1)
        wait_for(lambda: len(daemon.asked) > 5, "many tries")
        kept.fails = False
        wait_for(lambda: len(kept.rows) == 1, "the row")
    assert caplog.text.count("did not take its figures") == 1


def test_a_tracker_that_hangs_holds_close_for_its_limit_only(
    daemon: Answers,
    socket_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server of experiments that does not answer ends no script late, and the log says so."""
    monkeypatch.setattr(figure_log, "CLOSE_S", 0.1)
    held = threading.Event()

    class Hanging(Kept):
        def write(self, figures: LoggedFigures) -> None:
            super().write(figures)
            held.wait(60)

    kept = Hanging()
    log = opened(socket_path, kept)
    log(1)
    wait_for(lambda: len(kept.rows) == 1, "the write that hangs")
    log.close()
    assert not held.is_set()
    assert caplog.text.count("its newest figures are not written after 0.1 s") == 1
    held.set()


def test_only_the_rank_that_leads_writes(daemon: Answers, socket_path: Path) -> None:
    """Others ask nothing; one that no longer leads writes nothing more."""
    kept, run = Kept(), Measured(leads=False)
    log = opened(socket_path, kept, run)
    for step in range(10):
        log(step)
    assert daemon.asked == []
    run.leads = True
    log(10)
    wait_for(lambda: len(kept.rows) == 1, "a row")
    run.leads = False
    log(11)
    daemon.answers = {PATH: (200, Spent(energy_j=1.0).to_json())}
    asked = len(daemon.asked)
    wait_for(lambda: len(daemon.asked) > asked + 2, "more questions")
    log.close()
    assert len(kept.rows) == 1


@pytest.mark.parametrize("step", [None, "many", math.nan, object()])
def test_a_step_that_is_no_number_raises_nothing(step: Any, socket_path: Path) -> None:
    """The script goes on, and the log takes the next one."""
    log = opened(socket_path, Kept())
    log(step)
    assert log._thread is None


def test_without_a_daemon_one_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No WATTMESH_URL, or one that is not understood: no thread, no row, one sentence."""
    for url, words in (("", "WATTMESH_URL is not set"), ("http://elsewhere", "unix:///")):
        monkeypatch.setenv("WATTMESH_URL", url)
        caplog.clear()
        log = FigureLog(Measured(), Kept())
        for step in range(5):
            log(step)
        assert words in caplog.text
        assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1
        log.close()


def test_nothing_of_a_tracker_or_of_torch_is_loaded() -> None:
    """The packages are the script's: ours import neither them nor what the daemon needs."""
    names = ("mlflow", "tensorboard", "wandb")
    imports = "; ".join(f"import wattmesh.integrations.{name}" for name in names)
    heavy = {*names, "torch", "numpy", "requests", "sqlalchemy", "pydantic"}
    assert loaded_after(imports) & heavy == set()
    assert loaded_after(f"{imports}; import pydantic") & heavy == {"pydantic"}


def test_a_forked_child_writes_nothing(daemon: Answers, socket_path: Path) -> None:
    """Workers of a data loader share the object and have no thread."""
    kept = Kept()
    log = opened(socket_path, kept)
    log._pid = os.getpid() + 1
    log(1)
    log.close()
    assert (kept.rows, daemon.asked) == ([], [])
