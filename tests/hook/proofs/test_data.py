"""A rank that silently trains something else is found at the next save step, and given up."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.hook.harness import DP2, Run, Zygote, worst_difference
from tests.hook.tiny import Fault
from wattmesh.reconfig.hook.consumed import Consumed, problem
from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.launch.failures.watchdog import RankWatchdog
from wattmesh.reconfig.launch.folder import RunFolder, read_json, write_json
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State

Undisturbed = Callable[[int, str], dict[int, float]]

WORDS = {
    "shift": "40 samples since the last check (rank 0 20, rank 1 20), which are not samples 40 ",
    "stale": "rank 1 stands at Position(step=6, samples=56, tokens=896), though its steps led to",
    "late": "ranks [1] hold another position or extra state (schedules, counters) than rank 0",
}
"""What is said of each silent fault; at step 7, after the checkpoint of step 5."""


def diverge(zygote: Zygote, folder: Path, what: str, *, tell_data: bool = True) -> Run:
    """Train a run in which rank 1 silently does something else at step 7."""
    fault = Fault(rank=1, at="train", what=what, after_step=7)
    run = Run(
        zygote, folder, 2, layout=DP2, steps=10, boundary_every=5,
        fault=fault, tell_data=tell_data,
    )  # fmt: skip
    assert run.supervised() == 0, (run.said, run.log())
    return run


def test_a_silent_divergence_is_given_up_and_trained_again(
    zygote: Zygote, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Other data, an older step or an older schedule on one rank: none of it is ever saved."""
    expected = undisturbed(10, "float32")
    with ThreadPoolExecutor(2) as pool:
        folders = [tmp_path / what for what in WORDS]
        runs = list(pool.map(partial(diverge, zygote), folders, WORDS))
    for what, run in zip(WORDS, runs, strict=True):
        assert len(run.launches) == 2, (what, run.said)
        assert WORDS[what] in run.said[0], (what, run.said, run.log())
        assert "launching again from step 5" in run.said[0], run.said
        assert worst_difference(run.losses(), expected) <= 1e-5, what


def test_without_the_samples_numbers_other_data_is_trained_in_silence(
    zygote: Zygote, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The sabotaged twin: the same fault, but nobody says what was read."""
    run = diverge(zygote, tmp_path, "shift", tell_data=False)
    assert len(run.launches) == 1
    assert worst_difference(run.losses(), undisturbed(10, "float32")) > 1e-3


def test_last_words_wait_for_no_disk(zygote: Zygote, tmp_path: Path) -> None:
    """A disk that takes longer than a rank may take to leave: the reason is told all the same."""
    fault = Fault(rank=1, at="train", what="stale", after_step=7)
    run = Run(zygote, tmp_path, 2, boundary_every=5, fault=fault, stuck_disk_at=6)
    assert run.once() != 0
    told = [read_json(each) or {} for each in RunFolder(run.checkpoints).failures.glob("*.json")]
    assert any(WORDS["stale"] in each["sentence"] for each in told), run.log()


def rank_that_is_ended_as_it_fails() -> int:
    """Fail in a step; the launcher ends this process before it has told any other rank."""
    folder = Path(os.environ["FOLDER"])
    stop = RankWatchdog.stop

    def ended(watchdog: RankWatchdog) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        stop(watchdog)

    RankWatchdog.stop = ended  # type: ignore[method-assign, assignment]

    def build(layout: Layout, ranks: Ranks) -> State:
        del layout, ranks
        model = torch.nn.Linear(2, 2)
        return State(modules=[model], optimizers=[torch.optim.SGD(model.parameters(), lr=0.1)])

    with attach(
        "failing", build=build, probe=lambda state: 1.0, layout=Layout(), checkpoint_dir=folder
    ):
        raise ValueError("the loss is not finite")


def test_a_rank_that_is_ended_while_it_fails_has_said_why(zygote: Zygote, tmp_path: Path) -> None:
    """When one rank has ended, torchrun sends the others SIGTERM: their reason is kept by then."""
    job = "tests.hook.proofs.test_data:rank_that_is_ended_as_it_fails"
    launch = zygote.start(1, {"FOLDER": str(tmp_path)}, tmp_path, job)
    assert zygote.wait(launch) == 1
    (told,) = RunFolder(tmp_path).failure_sentences()
    assert "the loss is not finite" in told


def test_the_first_to_fail_is_named_first(tmp_path: Path) -> None:
    """What its end broke on a rank with a lower number is not the cause; a torn file is nothing."""
    folder = RunFolder(tmp_path)
    assert folder.failure_sentences() == []
    for rank, at_s, sentence in [(0, 9.0, "rank 2 is gone"), (2, 8.0, "the loss is nan")]:
        words = {"rank": rank, "code": 1, "at_s": at_s, "sentence": sentence}
        write_json(folder.failures / f"rank-{rank}.json", words)
    (folder.failures / "rank-1.json").write_text("{")
    (folder.failures / "rank-3.json").write_text('{"at_s": "soon", "sentence": "?"}')
    assert folder.failure_sentences() == ["the loss is nan", "rank 2 is gone"]


def facts(*reads: list[int], since: int = 0) -> list[dict[str, object]]:
    """What ranks that read these samples tell each other."""
    told = []
    for read in reads:
        consumed = Consumed(since=since)
        consumed.add(read)
        told.append(consumed.to_json())
    return told


@given(st.integers(0, 1 << 40), st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.data())
def test_any_division_of_the_samples_is_right(
    since: int, samples: int, replicas: int, ranks: int, data: st.DataObject
) -> None:
    """However the run's next samples are dealt out, in whatever order, each on as many ranks."""
    numbers = list(range(since, since + samples)) * replicas
    owners = data.draw(st.lists(st.integers(0, ranks - 1), min_size=len(numbers),
                                max_size=len(numbers)))  # fmt: skip
    reads: list[list[int]] = [[] for _ in range(ranks)]
    for number, owner in zip(numbers, owners, strict=True):
        reads[owner].append(number)
    assert problem(facts(*reads, since=since), range(ranks), since + samples) == ""


@pytest.mark.parametrize(
    ("reads", "why"),
    [
        ([[0, 1], [2, 4]], "rank 1 read samples 2 to 4"),
        ([[0, 1], [1, 2]], "rank 0 2, rank 1 2"),
        ([[0, 1], [2]], "rank 0 2, rank 1 1"),
        ([[0, 1], [2, 3], [0, 1], [2, 2]], "rank 3 2"),
        ([[0, 1, 2, 3], []], ""),
        ([[], []], ""),
    ],
)
def test_missing_repeated_and_foreign_samples_are_named(reads: list[list[int]], why: str) -> None:
    """Every way to read something else; a rank that reads nothing is not one of them."""
    found = problem(facts(*reads), range(len(reads)), 4)
    assert why in found
    assert bool(found) == bool(why)


def test_numbers_may_come_as_a_tensor_or_a_range() -> None:
    """What loaders have at hand: the same sum for each."""
    sums = []
    for numbers in ([5, 6, 7], range(5, 8), torch.arange(5, 8), iter((5, 6, 7))):
        consumed = Consumed()
        consumed.add(numbers)
        sums.append((consumed.count, consumed.total))
    assert len(set(sums)) == 1
