"""What Slurm's clients print, read: real answers, broken ones, hostile ones."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.integrations.slurm import answers
from wattmesh.integrations.slurm.answers import SEPARATOR, SlurmJob

UID = 1000
RECORDED = (
    "17\x1f1000\x1fPENDING\x1f1795518069\x1f1795521669\x1f2\x1fDependency\x1fgres:gpu:h100:8"
    "\x1f0\x1f(null)\x1fwattmesh:3a7c.plan-1\n"
    "16\x1f1000\x1fRUNNING\x1f1795518060\x1f1795518061\x1f1\x1fNone\x1f(null)\x1f4G\x1fa100\x1f"
    "(null)\n"
)
"""What squeue 22.05.8 printed, and only the ids are others."""


def job(**changes: object) -> str:
    """Give one line of an answer."""
    fields = {
        **{"number": "5", "uid": str(UID), "state": "PENDING", "submitted": "1795518069"},
        **{"begins": "N/A", "nodes": "1", "reason": "None", "gpus": "N/A", "memory": "0"},
        **{"features": "(null)", "comment": "(null)"},
        **changes,
    }
    return SEPARATOR.join(str(each) for each in fields.values())


def test_a_recorded_answer_is_read() -> None:
    """Each field is where squeue prints it."""
    pending, running = answers.jobs(RECORDED, UID)
    assert pending == SlurmJob(
        number=17,
        uid=UID,
        state="PENDING",
        submitted_at=datetime.fromtimestamp(1795518069, UTC),
        begins_at=datetime.fromtimestamp(1795521669, UTC),
        nodes=2,
        reason="Dependency",
        gpus="gres:gpu:h100:8",
        memory="0",
        features="",
        mark="3a7c.plan-1",
    )
    assert (running.gpus, running.memory, running.features, running.mark) == ("", "4G", "a100", "")
    assert pending.is_live
    assert running.is_live


@pytest.mark.parametrize(
    ("state", "live"),
    [
        *((each, False) for each in sorted(answers.ENDED)),
        *((each, True) for each in ("COMPLETING", "REQUEUE_HOLD", "SUSPENDED", "OF_A_NEW_VERSION")),
    ],
)
def test_a_state_that_is_not_known_counts_as_live(state: str, live: bool) -> None:
    """So that a version that renames one starts no second launch."""
    (found,) = answers.jobs(job(state=state), UID)
    assert found.is_live is live


@pytest.mark.parametrize(
    "line",
    [
        "",
        "slurm_load_jobs error: Unable to contact slurm controller",
        job(number="5_[1-3]"),
        job(number="-1"),
        job(number="9" * 40),
        job(uid="1001"),
        job(nodes="1-2"),
        job().replace(SEPARATOR, "|"),
    ],
)
def test_a_line_that_is_none_of_ours_is_passed_over(line: str) -> None:
    """It hides no other line."""
    assert [each.number for each in answers.jobs(f"{line}\n{job(number=7)}\n", UID)] == [7]


@given(st.text(max_size=200))
def test_no_comment_takes_the_place_of_another_field(comment: str) -> None:
    """Whatever a comment holds, the fields before it are what Slurm printed there."""
    found = answers.jobs(job(comment=comment), UID)
    assert found[0].number == 5
    assert found[0].state == "PENDING"


@given(st.text(max_size=400))
def test_any_answer_is_read_without_an_error(answer: str) -> None:
    """By every reader."""
    answers.jobs(answer, UID)
    answers.options(answer)
    answers.submitted(answer)
    answers.waited_s(answer)
    answers.steps(answer, "wattmesh-1")
    assert len(answers.words(answer)) <= 500
    assert answers.words(answer).isprintable()


@pytest.mark.parametrize(
    ("comment", "mark"),
    [
        ("wattmesh:run.plan-1", "run.plan-1"),
        ("project=7 wattmesh:run.plan-1 cost=3", "run.plan-1"),
        ("xwattmesh:run.plan-1", ""),
        ("wattmesh:", ""),
        ("wattmesh:run/plan", ""),
        ("wattmesh:" + "a" * 130, ""),
    ],
)
def test_a_mark_is_found_among_a_sites_own_words(comment: str, mark: str) -> None:
    """And is nothing else than a mark."""
    assert answers.mark_of(comment) == mark


def test_options_are_those_that_a_successor_needs() -> None:
    """What is not set is left out; a job name may hold anything but a line's end."""
    told = SEPARATOR.join(("gpu", "(null)", "normal", "(null)", "1-00:00:00", "/home/u", "a b|c"))
    assert answers.options(f"{told}\n") == [
        "--partition=gpu",
        "--qos=normal",
        "--time=1-00:00:00",
        "--chdir=/home/u",
        "--job-name=a b|c",
    ]
    assert answers.options("gpu\n") == []


@pytest.mark.parametrize(
    ("told", "number"),
    [
        ("17\n", 17),
        ("17;alps\n", 17),
        ("sbatch: warning: site says hello\n17\n", 17),
        ("", None),
        ("Submitted\n", None),
        ("0\n", None),
    ],
)
def test_the_id_of_a_submitted_job_is_read(told: str, number: int | None) -> None:
    """With the cluster's name, and after warnings."""
    assert answers.submitted(told) == number


def test_only_steps_of_the_name_are_named() -> None:
    """A user's own step in the same job is not ours to end."""
    told = "14.0 wattmesh-1\n14.1 monitor\n14.batch batch\n14.2 wattmesh-10\n"
    assert answers.steps(told, "wattmesh-1") == ["14.0"]


def test_a_number_that_another_launch_has_by_now_is_not_ours() -> None:
    """Slurm that lost its state counts from the start; a site may have overwritten a comment."""
    lines = "\n".join(
        (
            job(number="5", comment="wattmesh:another.plan-7"),
            job(number="6", comment="(null)"),
            job(number="7", comment="wattmesh:mine.plan-1"),
        )
    )
    found = answers.any_of(answers.jobs(lines, UID), "mine.plan-1", [5, 6])
    assert [each.number for each in found] == [6, 7]


@pytest.mark.parametrize(
    ("answer", "gpus"), [("gres:gpu:4   \n", "gres:gpu:4"), ("N/A \n", ""), ("cpu=4\n", "")]
)
def test_gpus_that_are_asked_for_as_a_whole_are_read(answer: str, gpus: str) -> None:
    """As squeue prints tres-per-job."""
    assert answers.gpus_in_all(answer) == gpus
