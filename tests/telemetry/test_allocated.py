"""GPUs that the scheduler gave a job and that no process uses: whose energy it is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.test_attribution import (
    ALICE,
    BOB,
    HOLDERS,
    MINE,
    SOME_GPUS,
    T0,
    VIEWS,
    by,
    holder,
    view,
)
from wattmesh.telemetry.energy.attribution import (
    DISPUTED,
    IDLE,
    RELEASED,
    EnergyClaim,
    Holder,
    LaunchState,
    NodeView,
    attribute,
)

JOB = "slurm:1"
FOUR = ("G0", "G1", "G2", "G3")
HALF = holder(job=JOB, allocated=FOUR)
"""Two ranks in a job that has four GPUs."""
THEIRS = EnergyClaim(run="run-2", incarnation="run-2-a", line="run")


def test_a_run_pays_for_what_its_job_has_and_nobody_uses() -> None:
    """With a view of processes, and without; so it does for a rank's GPU that is not used yet."""
    seen = view(G0=(by(ALICE, job=JOB),), G1=(), G2=(), G3=(), G4=())
    assert attribute([HALF], seen) == {**dict.fromkeys(FOUR, MINE), "G4": IDLE}
    assert attribute([HALF]) == dict.fromkeys(FOUR, MINE)
    # An older hook says nothing of it.
    silent = attribute([holder(job=JOB)], seen)
    assert silent == {"G0": MINE, **dict.fromkeys(("G1", "G2", "G3", "G4"), IDLE)}


@pytest.mark.parametrize(
    ("standing", "users", "expected"),
    [
        (LaunchState.LOST, (by(ALICE, job=JOB),), MINE),  # silent, and its job computes on
        (LaunchState.LOST, (), IDLE),  # whether its job lives nobody can say
        (LaunchState.LOST, (by(BOB),), IDLE),
        (LaunchState.FINISHED, (), IDLE),
        (LaunchState.FINISHED, (by(ALICE, job=JOB),), IDLE),  # the next script of its job
    ],
)
def test_it_pays_while_its_launch_lives_in_that_job(
    standing: LaunchState, users: tuple[object, ...], expected: EnergyClaim
) -> None:
    """Not after it: who has the GPU then is not known from it."""
    over = replace(HALF, standing=standing)
    assert attribute([over], view(G0=users, G3=()))["G3"] == expected  # type: ignore[arg-type]


def test_a_run_that_sleeps_inside_its_job_pays_on() -> None:
    """Its launcher waits in the job, so nobody else can have the GPUs."""
    asleep = replace(HALF, standing=LaunchState.LOST, idles=True)
    for seen in (None, view(G0=(), G1=(), G2=(), G3=())):
        assert attribute([asleep], seen) == dict.fromkeys(FOUR, MINE)


def test_processes_come_first() -> None:
    """What somebody else computes on is not charged to the job that should have it."""
    other = holder("run-2", gpus=("G2",), owner_uid=BOB, pid=8, job="slurm:2")
    seen = view(G2=(by(BOB, job="slurm:2"),), G3=(by(BOB, 44),))
    claims = attribute([HALF, other], seen)
    assert (claims["G2"], claims["G3"]) == (THEIRS, DISPUTED)
    assert attribute([HALF], view(G3=(by(ALICE, 44),)))["G3"] == MINE  # no cgroup says its job
    assert attribute([HALF], view(G3=(by(ALICE, 44, "slurm:9"),)))["G3"] == DISPUTED


def test_of_two_runs_in_one_job_each_pays_for_its_ranks_and_nobody_for_the_rest() -> None:
    """Both have all four; an idle one is nobody's to charge."""
    second = holder("run-2", gpus=("G2",), pid=8, job=JOB, allocated=FOUR)
    expected = {"G0": MINE, "G1": MINE, "G2": THEIRS, "G3": DISPUTED}
    assert attribute([HALF, second], view(G0=(), G1=(), G2=(), G3=())) == expected
    assert attribute([HALF, second]) == expected
    # So it is while a job that ended without a word still counts as live.
    next_job = holder("run-2", gpus=(), pid=8, job="slurm:2", allocated=("G3",))
    assert attribute([HALF, next_job], view(G3=()))["G3"] == DISPUTED
    assert attribute([replace(HALF, standing=LaunchState.LOST), next_job])["G3"] == THEIRS


def test_a_run_that_sleeps_beside_another_pays_for_its_ranks_gpus_if_its_job_has_them() -> None:
    """Seen or not. One that sleeps outside of a job has not what the next job got."""
    second = holder("run-2", gpus=("G2",), pid=8, job=JOB, allocated=FOUR)
    inside = replace(HALF, standing=LaunchState.LOST, idles=True)
    expected = {"G0": MINE, "G1": MINE, "G2": THEIRS, "G3": DISPUTED}
    outside = replace(inside, allocated=())
    for seen in (None, view(G0=(), G1=(), G2=(), G3=())):
        assert attribute([inside, second], seen) == expected
        assert attribute([outside, second], seen) == dict.fromkeys(FOUR, THEIRS)
        assert attribute([outside], seen)["G0"] == MINE


def test_what_a_job_still_has_was_not_given_back() -> None:
    """By whichever run."""
    gave = holder("run-2", gpus=(), released=("G3",), pid=8)
    for seen in (None, view(G3=())):
        assert attribute([gave], seen)["G3"] == RELEASED
        assert attribute([gave, HALF], seen)["G3"] == MINE
        assert attribute([HALF, gave], seen)["G3"] == MINE


def test_a_whole_node_of_which_a_part_idles_is_the_runs() -> None:
    """Its processors follow: nobody else could use them with these GPUs."""
    seen = view(G0=(by(ALICE, job=JOB),), G1=(), G2=(), G3=())
    assert attribute([HALF], seen, (*FOUR, "cpu:n1:0"))["cpu:n1:0"] == MINE


def test_only_a_nodes_own_part_reaches_it_and_survives_the_wire() -> None:
    """An agent of before reads the same object and leaves it out."""
    part = HALF.on({"G3"})
    assert (part.gpus, part.allocated) == ((), ("G3",))
    assert Holder.from_json(part.to_json()) == part
    old = {key: value for key, value in part.to_json().items() if key != "allocated"}
    assert Holder.from_json(old).allocated == ()


def judge(
    holders: Sequence[Holder], seen: NodeView, claims: Mapping[str, EnergyClaim]
) -> list[str]:
    """Name the GPUs without a process that are not where brute force puts them."""
    wrong = []
    for gpu in (gpu for gpu, users in seen.users.items() if not users):
        live = {each.run for each in holders if gpu in each.allocated and each.standing == "live"}
        silent = {each.run for each in holders if gpu in each.allocated and each.standing == "lost"}
        claim = claims[gpu]
        if live and claim.run not in live | silent and claim != DISPUTED:
            wrong.append(f"{gpu} is {claim.line}, though a live job has it")
        if not live | silent and claim.line not in ("idle", "idle_after_release"):
            wrong.append(f"{gpu} is {claim.line}, and no job has it")
    return wrong


@given(holders=HOLDERS, given_to=st.lists(SOME_GPUS, min_size=4, max_size=4), seen=VIEWS)
def test_an_idle_gpu_is_a_live_jobs_or_nobodys(
    holders: list[Holder], given_to: list[tuple[str, ...]], seen: NodeView
) -> None:
    """Whatever is registered and seen; beside it the older invariants of one line each."""
    having = [
        replace(each, allocated=gpus, registered_at=T0)
        for each, gpus in zip(holders, given_to, strict=False)
    ]
    claims = attribute(having, seen, FOUR)
    assert set(claims) >= set(FOUR)
    assert all((claim.line == "run") == bool(claim.run) for claim in claims.values())
    assert judge(having, seen, claims) == []


def test_an_attribution_that_forgets_jobs_is_caught() -> None:
    """Sabotaged twins: one that books idle, one that charges what is over."""
    seen = view(G3=())
    forgetful = attribute([replace(HALF, allocated=())], seen)
    assert judge([HALF], seen, forgetful) == ["G3 is idle, though a live job has it"]
    over = replace(HALF, standing=LaunchState.FINISHED)
    assert judge([over], seen, attribute([HALF], seen)) == ["G3 is run, and no job has it"]
