"""What alerts on runs, nodes, GPUs and disks rest on: the journal, and the agent's own facts."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from tests.builders.accounts import B
from tests.builders.journals import fresh_file
from tests.builders.runs import PLAN, T0, UID, after, progress, register
from tests.cycle.test_fences import node
from tests.daemon.clocks import SteppedClock
from wattmesh.controller.agent.knowledge import HALF_HOURS, AgentInstructions
from wattmesh.controller.agent.loop_bodies import Newest
from wattmesh.controller.agent.metrics import AgentMetrics
from wattmesh.controller.agent.outbox import OutboxFill
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.metrics import figures
from wattmesh.controller.metrics.figures import FigureReader
from wattmesh.controller.metrics.nodes import node_metrics
from wattmesh.controller.metrics.runs import run_metrics
from wattmesh.controller.metrics.storage import storage_metrics
from wattmesh.controller.settings.read import Settings
from wattmesh.policies.decision import Action, Decision, Mode
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Finish, Order, SwitchMode
from wattmesh.telemetry.desired import Applied, Desired, GpuControl, LeaseKind, Wish
from wattmesh.telemetry.energy.attribution import EnergyClaim
from wattmesh.telemetry.energy.sampler import Sample

Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def clock() -> SteppedClock:
    """A clock at the moment when the run registers."""
    made = SteppedClock()
    made.step_wall((T0 - made.wall).total_seconds())
    return made


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal with the run `r`, of name `llm`, which has trained a little."""
    made = fresh_file(tmp_path / "runs.db")
    register(made)
    progress(made, now=after(1), tokens=1000)
    return made


def samples(metrics: object) -> Found:
    """Give every sample by its name and labels."""
    found: Found = {}
    for metric in metrics:  # type: ignore[attr-defined]
        assert isinstance(metric, Metric)
        found |= {
            (each.name, tuple(sorted(each.labels.items()))): each.value for each in metric.samples
        }
    return found


def told(journal: Journal, clock: SteppedClock) -> Found:
    """Read the metrics of runs as a scrape does."""
    loop_facts = LoopFacts(clock=clock.clock, settings=Settings(), started_s=0.0)
    return samples(run_metrics(loop_facts, FigureReader(journal, loop_facts).read()))


def value(found: Found, name: str, **labels: str) -> float | None:
    """Give the one sample with these labels; None where there is none."""
    wanted = set(labels.items())
    given = [each for (one, keys), each in found.items() if one == name and wanted <= set(keys)]
    assert len(given) <= 1
    return given[0] if given else None


def words(found: Found, name: str) -> dict[str, str]:
    """Give the labels of the one sample of a name."""
    (labels,) = (dict(keys) for one, keys in found if one == name)
    return labels


def test_a_live_run_has_a_deadline_a_target_and_counters_from_zero(
    journal: Journal, clock: SteppedClock
) -> None:
    """A counter that began with its first failure would hide that failure from `increase`."""
    found = told(journal, clock)
    deadline = (T0 + timedelta(seconds=PLAN.deadline_after_s or 0)).timestamp()
    assert value(found, "wattmesh_run_deadline_timestamp_seconds", run="llm") == deadline
    assert value(found, "wattmesh_run_target_tokens", run_id="r") == 100_000
    for outcome in ("failed", "rolled_back", "confirmed", "abandoned"):
        assert value(found, "wattmesh_switches_total", run="llm", outcome=outcome) == 0
    assert value(found, "wattmesh_run_checkpoint_failing", run="llm") == 0
    clock.pass_s(61.0)
    assert value(told(journal, clock), "wattmesh_run_heard_age_seconds", run="llm") == 60.0


def test_a_freeze_says_by_whom(journal: Journal, clock: SteppedClock) -> None:
    """Only what wattmesh froze calls a person; one that a person froze is known to one."""
    for by, mine, theirs in (("wattmesh", 1.0, 0.0), ("uid 1000", 0.0, 1.0)):
        journal.runs.freeze("r", reason="two switches failed", by=by, now=clock.wall)
        found = told(journal, clock)
        assert value(found, "wattmesh_run_frozen", by="wattmesh") == mine
        assert value(found, "wattmesh_run_frozen", by="person") == theirs
        journal.runs.thaw("r", now=clock.wall)
    journal.runs.freeze(None, reason="the grid operator asks", by="uid 1000", now=clock.wall)
    assert value(told(journal, clock), "wattmesh_run_frozen", by="person") == 1.0
    journal.runs.thaw(None, now=clock.wall)
    assert value(told(journal, clock), "wattmesh_run_frozen", by="wattmesh") == 0.0


def test_a_launch_that_said_that_it_leaves_is_not_lost(
    journal: Journal, clock: SteppedClock
) -> None:
    """It is `stopped`, has no deadline to miss and no silence; one that fell silent is `lost`."""
    clock.pass_s(3600.0)
    assert words(told(journal, clock), "wattmesh_run_config_info")["state"] == "lost"
    leave = Finish(run="r", incarnation="i1", attempt=1, step=10, tokens=1000, reason="stopped")
    journal.runs.finish(leave, owner_uid=UID, now=clock.wall)
    clock.pass_s(3600.0)
    found = told(journal, clock)
    assert words(found, "wattmesh_run_config_info")["state"] == "stopped"
    for name in ("deadline_timestamp_seconds", "heard_age_seconds", "frozen", "target_tokens"):
        assert value(found, f"wattmesh_run_{name}", run="llm") is None
    assert value(found, "wattmesh_run_tokens_total", run="llm") == 1000


def ordered(journal: Journal, epoch: int, switch_id: str, *, run: str = "r", at: datetime) -> None:
    """Order the run to B."""
    order = Order(
        switch_id=switch_id,
        epoch=epoch,
        run=run,
        attempt=1,
        point="B",
        layout=B,
        ranks=(0, 1),
        mode=SwitchMode.IN_PLACE,
        not_before_step=10,
        valid_until_step=100,
    )
    assert journal.switches.order(
        order,
        from_point="A",
        requested_by="policy",
        reason="It takes 3 J less.",
        predicted_g=None,
        switch_cost_g=None,
        now=at,
    )


def test_the_newest_switch_has_the_key_of_its_reason(journal: Journal, clock: SteppedClock) -> None:
    """Of the decision that ordered it, not of what was decided afterwards; never a sentence."""
    epoch = journal.leadership.acquire("d", 60.0) or 0
    decided = Decision(
        run="r", action=Action.SWITCH, kind="energy", reason="It takes 3 J less.", target="B"
    )
    journal.decisions.record([decided], now=clock.wall, epoch=epoch, mode=Mode.ACT)
    at = clock.wall + timedelta(seconds=1)
    ordered(journal, epoch, "p1", at=at)
    clock.pass_s(30.0)
    later = replace(decided, kind="deadline")
    journal.decisions.record([later], now=clock.wall, epoch=epoch, mode=Mode.ACT)
    found = told(journal, clock)
    assert words(found, "wattmesh_run_switch_timestamp_seconds") == {
        "run": "llm",
        "run_id": "r",
        "from_point": "A",
        "to_point": "B",
        "by": "policy",
        "reason": "energy",
        "state": "ordered",
    }
    assert value(found, "wattmesh_run_switch_timestamp_seconds", run="llm") == at.timestamp()
    assert not any("It takes" in word for _, keys in found for _, word in keys)


def test_a_run_that_is_seldom_switched_keeps_its_newest_switch(
    journal: Journal, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many other runs were switched since."""
    epoch = journal.leadership.acquire("d", 60.0) or 0
    ordered(journal, epoch, "p0", at=clock.wall)
    loop_facts = LoopFacts(clock=clock.clock, settings=Settings(), started_s=0.0)
    reader = FigureReader(journal, loop_facts)
    reader.read()
    journal.switches.close("p0", SwitchState.ABANDONED, detail="", now=clock.wall, epoch=epoch)
    reader.read()
    monkeypatch.setattr(figures, "NEWEST", 2)
    for number in range(3):
        other = f"r{number}"
        register(journal, run=other, name=other, incarnation=other)
        ordered(journal, epoch, f"p{number + 1}", run=other, at=after(100.0 + number))
    found = samples(run_metrics(loop_facts, reader.read()))
    name = "wattmesh_run_switch_timestamp_seconds"
    assert value(found, name, run_id="r", state="abandoned") == clock.wall.timestamp()
    assert value(found, name, run_id="r2", state="ordered") == after(102.0).timestamp()


def test_only_silent_nodes_have_a_series(clock: SteppedClock) -> None:
    """A thousand nodes that are heard add none."""
    clock.step_wall((node(1, "").last_seen_at - clock.wall).total_seconds() + 1.0)
    nodes = (*(node(number, "") for number in range(1000)), node(1001, "", age_s=300.0))
    loop_facts = LoopFacts(
        clock=clock.clock, settings=Settings(), started_s=0.0, fleet=Fleet(nodes=nodes)
    )
    found = samples(node_metrics(loop_facts))
    assert value(found, "wattmesh_nodes", state="heard") == 1000
    assert value(found, "wattmesh_nodes", state="silent") == 1
    assert value(found, "wattmesh_node_silent_seconds", node="n1001") == 300.0
    assert len([name for name, _ in found if name == "wattmesh_node_silent_seconds"]) == 1


def test_a_disk_is_known_where_the_journal_is_a_file(tmp_path: Path) -> None:
    """A server's is another machine's; a file that is gone is no error and no zero."""
    path = tmp_path / "journal.db"
    path.write_bytes(b"x" * 4096)
    (tmp_path / "journal.db-wal").write_bytes(b"x" * 100)
    found = samples(storage_metrics(f"sqlite:///{path}"))
    assert value(found, "wattmesh_journal_bytes") == 4196
    free = value(found, "wattmesh_journal_disk_bytes", kind="free") or 0.0
    assert 0 < free <= (value(found, "wattmesh_journal_disk_bytes", kind="size") or 0.0)
    for url in ("postgresql+psycopg://db/wattmesh", f"sqlite:///{tmp_path}/gone/journal.db"):
        assert samples(storage_metrics(url)) == {}


def test_an_agent_serves_faults_holders_and_what_is_left_of_leases(clock: SteppedClock) -> None:
    """A lease that ran out has no series; neither has an actuator that was not asked yet."""
    newest = Newest(sample=Sample(), claims={"GPU-1": EnergyClaim(run="r", line="run")})
    served = AgentMetrics(newest, node="n1", clock=clock.clock)
    found = samples(served.collect())
    assert value(found, "wattmesh_agent_info", node="n1", actuator="") == 1
    assert value(found, "wattmesh_gpu_holder_info", gpu_uuid="GPU-1", run_id="r") == 1
    assert not any(
        name.startswith(("wattmesh_gpu_fault", "wattmesh_gpu_lease")) for name, _ in found
    )
    economy = Wish(
        gpu_uuid="GPU-1", kind=LeaseKind.ECONOMY, holder="r", clock_mhz=1200, lease_s=60.0
    )
    cap = Wish(
        gpu_uuid="GPU-2",
        kind=LeaseKind.OBLIGATION,
        holder="cap",
        cap_w=400.0,
        until=clock.wall + timedelta(seconds=3600),
    )
    newest.instructions = AgentInstructions(
        desired=Desired(node="n1", epoch=1, serial="s", wishes=(economy, cap)),
        known=True,
        holders=(),
        grid=HALF_HOURS,
    )
    newest.heard_s = newest.taken_s = clock.monotonic_s
    newest.fill = OutboxFill(used_bytes=10, limit_bytes=100)
    newest.applied = Applied(
        mode="enforce",
        epoch=1,
        gpus=(
            GpuControl(gpu_uuid="GPU-1", fault="foreign", trouble="someone else set it"),
            GpuControl(gpu_uuid="GPU-2", fault="restore"),
        ),
    )
    clock.pass_s(20.0)
    found = samples(served.collect())
    assert value(found, "wattmesh_gpu_lease_seconds", gpu_uuid="GPU-1", kind="economy") == 40.0
    assert value(found, "wattmesh_gpu_lease_seconds", gpu_uuid="GPU-2", holder="cap") == 3580.0
    for gpu, fault in (("GPU-1", "foreign"), ("GPU-2", "restore")):
        for each in ("foreign", "restore"):
            is_it = float(each == fault)
            assert value(found, "wattmesh_gpu_fault", gpu_uuid=gpu, fault=each) == is_it
    assert value(found, "wattmesh_gpu_wish_refused", gpu_uuid="GPU-1") == 1
    assert value(found, "wattmesh_gpu_wish_refused", gpu_uuid="GPU-2") == 0
    assert value(found, "wattmesh_agent_controller_age_seconds", of="delivery") == 20.0
    assert value(found, "wattmesh_agent_outbox_bytes", kind="used") == 10
    clock.pass_s(41.0)
    found = samples(served.collect())
    assert value(found, "wattmesh_gpu_lease_seconds", gpu_uuid="GPU-1") is None


def test_a_fault_that_is_not_known_is_no_fault() -> None:
    """A newer actuator may tell another one: its sentence stands all the same."""
    wire = GpuControl(gpu_uuid="GPU-1", trouble="it is on fire", fault="foreign").to_json()
    assert GpuControl.from_json(wire).fault == "foreign"
    assert GpuControl.from_json(wire | {"fault": "fire"}).fault == ""
    assert GpuControl.from_json(wire | {"fault": ["x"]}).fault == ""
    del wire["fault"]  # as an older actuator sends it
    assert GpuControl.from_json(wire).trouble == "it is on fire"
