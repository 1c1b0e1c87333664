"""Whose energy it is: what runs registered, checked by what a node sees."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.energy.attribution import (
    DISPUTED,
    IDLE,
    RELEASED,
    EnergyClaim,
    Holder,
    LaunchState,
    NodeView,
    Process,
    attribute,
)
from wattmesh.telemetry.energy.ledger import share

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
ALICE, BOB = 1000, 1001


def holder(run: str = "run-1", **changes: Any) -> Holder:
    """Give an incarnation of Alice's with two GPUs."""
    values: dict[str, Any] = {
        "run": run,
        "incarnation": f"{run}-a",
        "gpus": ("G0", "G1"),
        "owner_uid": ALICE,
        "host": "n1",
        "pid": 7,
        "registered_at": T0,
    }
    return Holder(**values | changes)


def view(*, known: tuple[Process, ...] = (), **users: tuple[Process, ...]) -> NodeView:
    """Look at node n1."""
    return NodeView(host="n1", users=users, known={each.pid: each for each in known})


def by(uid: int | None, pid: int = 40, job: str = "") -> Process:
    """Give a process of a user."""
    return Process(pid=pid, uid=uid, job=job)


MINE = EnergyClaim(run="run-1", incarnation="run-1-a", line="run")


def test_without_a_view_registrations_stand_as_they_are() -> None:
    """Another source has no process table: a live run goes before one that fell silent."""
    other = holder("run-2", gpus=("G1", "G2"))
    assert attribute([holder(), other]) == {
        "G0": MINE,
        "G1": DISPUTED,
        "G2": EnergyClaim(run="run-2", incarnation="run-2-a", line="run"),
    }
    lost = holder("run-2", gpus=("G1", "G2"), standing=LaunchState.LOST)
    assert attribute([lost, holder()])["G1"] == MINE


def test_a_registered_gpu_belongs_to_the_run_while_its_process_computes_there() -> None:
    """Process there: the run's. Process gone: idle, though the run is live and has registered."""
    claims = attribute([holder()], view(G0=(by(ALICE),), G1=(), G2=()))
    assert claims == {"G0": MINE, "G1": IDLE, "G2": IDLE}


@pytest.mark.parametrize("standing", [LaunchState.LOST, LaunchState.FINISHED])
def test_energy_follows_processes_and_not_heartbeats(standing: LaunchState) -> None:
    """A run that fell silent, or said that it was done, still pays for what it computes."""
    claims = attribute([holder(standing=standing)], view(G0=(by(ALICE),), G1=()))
    assert claims == {"G0": MINE, "G1": IDLE}


def test_a_script_that_began_when_the_run_was_over_is_not_the_runs() -> None:
    """One user's next script, unknown to us, on the same GPU: nobody's, also in the same job."""
    over = holder(standing=LaunchState.FINISHED, ended_at=T0 + timedelta(hours=1))
    job = "slurm:1"
    named = replace(over, job=job)
    for minutes, whose in [(59, MINE), (61, DISPUTED)]:
        began = replace(by(ALICE), started_at=T0 + timedelta(minutes=minutes))
        assert attribute([over], view(G0=(began,)))["G0"] == whose
        assert attribute([named], view(G0=(replace(began, job=job),)))["G0"] == whose
    next_run = holder("run-2", pid=8, registered_at=T0 + timedelta(minutes=62))
    claims = attribute([over, next_run], view(G0=(began,)))
    assert claims["G0"].run == "run-2"


def test_another_users_process_on_a_claimed_gpu_makes_it_unattributed() -> None:
    """Alone or beside the run's own: nobody can say whose joules they are."""
    assert attribute([holder()], view(G0=(by(BOB),), G1=(by(ALICE), by(BOB, 41)))) == {
        "G0": DISPUTED,
        "G1": DISPUTED,
    }


def test_a_process_that_nobody_registered_is_unattributed() -> None:
    """So is one that the process table does not show."""
    claims = attribute([holder()], view(G0=(by(None),), G2=(by(ALICE),)))
    assert (claims["G0"], claims["G2"]) == (DISPUTED, DISPUTED)


def test_two_runs_on_one_gpu_are_unattributed_unless_their_jobs_tell_them_apart() -> None:
    """One user, two runs, one GPU; the scheduler's cgroups say which of them computes there."""
    both = [holder(), holder("run-2", pid=8)]
    assert attribute(both, view(G0=(by(ALICE),)))["G0"] == DISPUTED
    jobs = [holder(job="slurm:1"), holder("run-2", pid=8, job="slurm:2")]
    assert attribute(jobs, view(G0=(by(ALICE, job="slurm:1"),)))["G0"] == MINE
    two = (by(ALICE, job="slurm:1"), by(ALICE, 41, job="slurm:2"))
    assert attribute(jobs, view(G0=two))["G0"] == DISPUTED


def test_the_job_of_rank_0_is_read_off_its_process() -> None:
    """A run that named no job: its registering process shows it, if it is still the same one."""
    both = [holder(), holder("run-2", pid=8)]
    shown = view(
        G0=(by(ALICE, 41, "unit:session-3.scope"),),
        known=(by(ALICE, 7, "unit:session-3.scope"), by(ALICE, 8, "unit:session-4.scope")),
    )
    assert attribute(both, shown)["G0"] == MINE
    reused = Process(
        pid=7, uid=ALICE, job="unit:session-3.scope", started_at=T0 + timedelta(hours=1)
    )
    again = view(G0=shown.users["G0"], known=(reused,))
    assert attribute(both, again)["G0"] == DISPUTED
    elsewhere = [holder(host="n2"), holder("run-2", pid=8, host="n2")]
    assert attribute(elsewhere, shown)["G0"] == DISPUTED


LOST = holder(standing=LaunchState.LOST)
LIVE = holder("run-2", pid=8)


@pytest.mark.parametrize("holders", [(LOST, LIVE), (LIVE, LOST), (holder(), LIVE)])
def test_a_registered_process_that_computes_decides_whose_a_shared_gpu_is(
    holders: tuple[Holder, ...],
) -> None:
    """Whoever was heard last: one run's process there is that run's, both are nobody's."""
    theirs = EnergyClaim(run="run-2", incarnation="run-2-a", line="run")
    shown = view(G0=(by(ALICE, 7),), G1=(by(ALICE, 7), by(ALICE, 8)), G2=(by(ALICE, 8),))
    assert attribute(holders, shown) == {"G0": MINE, "G1": DISPUTED, "G2": theirs}


@pytest.mark.parametrize(
    ("changes", "late_s"), [({"host": "n2"}, 0), ({}, 61), ({"owner_uid": BOB}, 0), ({"pid": 9}, 0)]
)
def test_a_number_alone_names_no_process(changes: dict[str, Any], late_s: int) -> None:
    """Of another node, begun long after it was registered, another user's: then it is no proof."""
    process = Process(pid=7, uid=ALICE, started_at=T0 + timedelta(seconds=late_s))
    claims = attribute([holder(standing=LaunchState.LOST, **changes), LIVE], view(G0=(process,)))
    assert claims["G0"].run == "run-2"


def test_a_process_of_the_runs_job_on_a_gpu_it_did_not_register_is_the_runs() -> None:
    """An evaluation beside the training: the scheduler gave that GPU to the same job."""
    claims = attribute([holder(job="slurm:1")], view(G5=(by(ALICE, job="slurm:1"),)))
    assert claims["G5"] == MINE


def test_a_stranger_cannot_take_part_in_a_job_by_its_name_alone() -> None:
    """The user must be the run's too."""
    claims = attribute([holder(job="slurm:1")], view(G0=(by(BOB, job="slurm:1"),)))
    assert claims["G0"] == DISPUTED


def test_a_process_of_another_job_of_the_same_user_is_not_the_runs() -> None:
    """The run's job is known, and it is another one."""
    claims = attribute([holder(job="slurm:1")], view(G0=(by(ALICE, job="slurm:2"),)))
    assert claims["G0"] == DISPUTED


def test_a_requeued_run_pays_as_its_new_launch_and_the_old_process_still_pays_as_the_run() -> None:
    """Old and new launch of one run at once: one run, the newer incarnation."""
    old = holder(standing=LaunchState.LOST, job="slurm:1")
    new = holder(incarnation="run-1-b", job="slurm:2")
    users = (by(ALICE, 41, "slurm:2"), by(ALICE, 40, "slurm:1"))
    assert attribute([old, new], view(G0=users))["G0"].incarnation == "run-1-b"


def test_a_gpu_that_was_given_back_is_idle_after_release_until_somebody_uses_it() -> None:
    """Booked apart, because it is taken from the cluster's saving."""
    small = holder(gpus=("G0",), released=("G1",))
    assert attribute([small], view(G0=(by(ALICE),), G1=())) == {"G0": MINE, "G1": RELEASED}
    other = holder("run-2", gpus=("G1",), owner_uid=BOB, pid=8)
    claims = attribute([small, other], view(G0=(), G1=(by(BOB),)))
    assert claims["G1"].run == "run-2"
    assert attribute([small, other], view(G1=()))["G1"] == IDLE


def test_a_process_that_stayed_on_a_released_gpu_is_still_the_runs() -> None:
    """It holds its context: the run pays, not the cluster."""
    small = holder(gpus=("G0",), released=("G1",))
    assert attribute([small], view(G1=(by(ALICE),)))["G1"] == MINE


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ({"G0": (by(ALICE),), "G1": (by(ALICE),)}, MINE),
        ({"G0": (by(ALICE),), "G1": ()}, DISPUTED),
        ({"G0": (by(ALICE),), "G1": (by(BOB),)}, DISPUTED),
        ({"G0": (), "G1": (by(BOB),)}, DISPUTED),
        ({"G0": (), "G1": ()}, IDLE),
        ({}, DISPUTED),
    ],
)
def test_processors_follow_the_gpus_when_all_of_them_agree(
    users: dict[str, tuple[Process, ...]], expected: EnergyClaim
) -> None:
    """A whole node is the run's; a shared one is nobody's to charge; a node without GPUs too."""
    devices = (*users, "cpu:n1:package-0", "dram:n1:package-0")
    claims = attribute([holder()], view(**users), devices)
    assert claims["cpu:n1:package-0"] == claims["dram:n1:package-0"] == expected


def test_a_gpu_that_could_not_be_asked_is_believed_as_it_was_registered() -> None:
    """A hung driver call must not turn a training run into an idle GPU."""
    assert attribute([holder()], view(G0=()))["G1"] == MINE


def test_holders_survive_the_wire() -> None:
    """Read back equal; what is none is refused in a sentence."""
    for each in (
        holder(),
        holder(ended_at=T0),
        holder(released=("G9",), job="slurm:1"),
        Holder.from_json(_least()),
    ):
        assert Holder.from_json(each.to_json()) == each
    wrongs: tuple[Any, ...] = (None, [], {}, _least() | {"gpus": 3}, _least() | {"standing": "odd"})
    for wrong in wrongs:
        with pytest.raises(InputInvalid, match="holder"):
            Holder.from_json(wrong)


def _least() -> dict[str, Any]:
    return {"run": "r", "incarnation": "i", "gpus": []}


GPUS = ("G0", "G1", "G2", "G3")
UIDS = st.sampled_from([ALICE, BOB, None])
JOBS = st.sampled_from(["", "slurm:1", "slurm:2", "unit:a.scope"])
PROCESSES = st.builds(Process, pid=st.integers(1, 9), uid=UIDS, job=JOBS)
SOME_GPUS = st.lists(st.sampled_from(GPUS), unique=True).map(tuple)
HOLDERS = st.lists(
    st.builds(
        Holder,
        run=st.sampled_from(["run-1", "run-2", "run-3"]),
        incarnation=st.sampled_from(["a", "b"]),
        gpus=SOME_GPUS,
        released=SOME_GPUS,
        standing=st.sampled_from(list(LaunchState)),
        owner_uid=UIDS,
        job=JOBS,
        host=st.just("n1"),
        pid=st.integers(1, 9),
    ),
    max_size=4,
)
VIEWS = st.builds(
    NodeView,
    host=st.just("n1"),
    users=st.dictionaries(st.sampled_from(GPUS), st.lists(PROCESSES, max_size=3).map(tuple)),
    known=st.dictionaries(st.integers(1, 9), PROCESSES),
)


@given(holders=HOLDERS, seen=st.none() | VIEWS, energy=st.integers(0, 10**9))
def test_every_device_is_on_exactly_one_line_and_the_sums_stay_whole(
    holders: list[Holder], seen: NodeView | None, energy: int
) -> None:
    """Whatever is registered and seen: one claim per device, each of them well formed."""
    devices = (*GPUS, "cpu:n1:0", "dram:n1:0")
    claims = attribute(holders, seen, devices)
    assert set(claims) == set(devices)
    for device, claim in claims.items():
        assert (claim.line == "run") == bool(claim.run)
        assert claim.line in {"run", "idle", "unattributed", "idle_after_release"}
        if claim.run and seen is not None and device in seen.users:
            assert seen.users[device], "a run pays only where a process computes"
    lines: dict[tuple[str, str], int] = {}
    for part, claim in zip(share(energy, [1] * len(claims)), claims.values(), strict=True):
        lines[claim.run, claim.line] = lines.get((claim.run, claim.line), 0) + part
    assert sum(lines.values()) == energy


@given(holders=HOLDERS, seen=VIEWS)
def test_a_run_never_pays_for_a_process_of_another_user(
    holders: list[Holder], seen: NodeView
) -> None:
    """Brute force: every process on a GPU that a run pays for could be of that run."""
    for gpu, claim in attribute(holders, seen).items():
        if claim.run and gpu in seen.users:
            owners = {each.owner_uid for each in holders if each.run == claim.run}
            assert all(process.uid in owners or None in owners for process in seen.users[gpu]), (
                f"{gpu} is charged to {claim.run}"
            )
