"""What was learned of a run's experts outlives daemons: killed, taken over from, damaged."""

import json
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st

from tests.api.conftest import open_folder, served, settings
from tests.builders import messages
from tests.daemon.process import SETTINGS, DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from tests.experts.live.test_live_costs import GPUS, IDLE_W
from tests.experts.live.test_live_strength import SteeredWorld
from wattmesh.controller.expert_costs.kept import FORM, KeptLearning, kept_text, read_kept
from wattmesh.controller.expert_costs.learning import Learning, taken_up
from wattmesh.controller.journal.events import Event
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import Fenced, InputInvalid
from wattmesh.policies.experts.costs import ClockAndLimit, OfflineSweep, TokenCost
from wattmesh.policies.experts.live_spans import CounterMark, RunCosts, RunCount
from wattmesh.policies.experts.published import PublishedScores, Telling
from wattmesh.policies.experts.quality import PairedEvidence, judged
from wattmesh.policies.experts.scores import GpuTime
from wattmesh.policies.experts.strength import StrengthStep
from wattmesh.reconfig.wire.experts import ExpertTokenReport
from wattmesh.telemetry.fake_nvml.control import FakeNvml

__all__ = ["open_folder", "served", "settings"]

RATE = 100_000
COSTS = f"/v1/runs/{messages.RUN}/expert-costs?details=yes"
AGES = ("age_s", "neutral_because")
MORE = """
[power]
source = "nvml"
library = "{library}"
[runs.llama-8b]
expert_sweep = "{folder}/sweep.json"
expert_strength = 0.2
expert_control = true
"""


class Job:
    """A run on two fake GPUs, one of them dear: it says what a hook says, to whoever leads."""

    def __init__(self, folder: Path, fake: FakeNvml) -> None:
        """Begin to draw power."""
        self.gpus = [each.truth().uuid for each in fake.gpus]
        for each, joules in zip(fake.gpus, (0.002, 0.004), strict=True):
            each.draw(IDLE_W + joules * RATE)
        self.began_s = time.monotonic()
        self.seq = 0
        sweep = {
            "joules_per_token": 0.003,
            "idle_w": IDLE_W,
            "joules_per_token_deviation": 0.002,
            "idle_w_deviation": 3.0,
        }
        gpus = [{"gpu": gpu, "sweep": sweep} for gpu in self.gpus]
        (folder / "sweep.json").write_text(json.dumps({"gpus": gpus}))

    def register(self, running: DaemonProcess) -> None:
        """Introduce the run."""
        body = messages.register(
            gpus=self.gpus, layout=messages.B.to_dict(), ranks=[0, 1], world_size=2
        )
        answer = running.post(f"/v1/runs/{messages.RUN}/register", body)
        assert answer.status == 200, answer.body

    def count(self, running: DaemonProcess, **other: Any) -> None:
        """Pass a save step: say what was counted by now."""
        self.seq += 1
        beat = messages.heartbeat()
        assert running.post(f"/v1/runs/{messages.RUN}/heartbeat", beat).status == 200
        done = int(RATE * (time.monotonic() - self.began_s))
        values: dict[str, Any] = {
            "run": messages.RUN,
            "incarnation": "incarnation-1",
            "attempt": 1,
            "seq": self.seq,
            "layout": messages.B,
            "tokens": dict.fromkeys(self.gpus, done),
            "strength": 0.1,
            "variation": 0.1,
            "gap": 0.001,
        }
        body = ExpertTokenReport(**values | other).to_json()
        answer = running.post(f"/v1/runs/{messages.RUN}/expert-tokens", body)
        assert answer.status == 200, answer.body

    def count_until(self, running: DaemonProcess, what: str, **other: Any) -> dict[str, Any]:
        """Count until a word of what the run is told is true; give all of it."""

        def there() -> bool:
            self.count(running, **other)
            time.sleep(0.6)
            told = running.get(COSTS).body
            return bool(told["version"] and (told[what] if what else any(told["scores"].values())))

        wait_for(there, f"{what or 'scores'} of the run")
        return settled(running)


def settled(running: DaemonProcess) -> dict[str, Any]:
    """What the run is told once nothing moves any more, but how old it is."""
    told: list[Any] = []

    def twice() -> bool:
        body = running.get(COSTS).body
        told.append({key: each for key, each in body.items() if key not in AGES})
        time.sleep(0.3)
        return body["version"] > 0 and told[-2:-1] == told[-1:]

    wait_for(twice, "costs that the daemon tells")
    found: dict[str, Any] = told[-1]
    return found


@contextmanager
def daemons(folder: Path) -> Iterator[tuple[Job, Any]]:
    """A run, and daemons over one journal; each gets a folder of its own."""
    fake = FakeNvml.create(folder / "gpus", 2)
    job = Job(folder, fake)
    more = MORE.format(library=fake.library, folder=folder)
    with ExitStack() as stack:

        def begin(name: str) -> DaemonProcess:
            (folder / name).mkdir(exist_ok=True)
            text = SETTINGS.format(folder=folder / name, more=more)
            text = text.replace(f"{folder / name}/journal.db", f"{folder}/journal.db")
            own = daemon(
                folder / name, text=text, migrated=False, module="tests.experts.live.fast_daemon"
            )
            return stack.enter_context(own)

        yield job, begin


def test_costs_and_a_stop_outlive_the_daemons_that_learned_them(tmp_path: Path) -> None:
    """Killed and taken over by one that stood by, killed and started again: the same, exactly."""
    with daemons(tmp_path) as (job, begin):
        leader = begin("a")
        standby = begin("b")
        job.register(leader)
        learned = job.count_until(leader, "")
        assert learned["strength"] == pytest.approx(0.1)
        assert learned["scores"] == pytest.approx({job.gpus[0]: -1.0, job.gpus[1]: 1.0})
        assert standby.get(COSTS).body["version"] == 0
        leader.stop(signal.SIGKILL)
        wait_for(lambda: standby.status()["leading"], "the standby to take over")
        assert settled(standby) == learned
        stopped = job.count_until(standby, "stopped", gap=2.0)
        assert (stopped["stopped"], stopped["strength"]) == (True, 0.0)
        assert stopped["gpus"][0]["spans"] >= learned["gpus"][0]["spans"]
        standby.stop(signal.SIGKILL)
        again = begin("a")
        assert settled(again) == stopped
        again.stop(signal.SIGKILL)
        # The twin: with another text for the run nothing of it is served, and a sentence says so.
        with closing(sqlite3.connect(tmp_path / "journal.db")) as database, database:
            database.execute("UPDATE expert_learning SET state = replace(state, '1', '2')")
        anew = begin("a")
        wait_for(lambda: "learned anew" in anew.log, "its sentence")
        told = anew.get(COSTS).body
        assert (told["version"], told["scores"]) == (0, {})
        said = anew.get(f"/v1/runs/{messages.RUN}/why").body["expert_costs"]
        assert "what its experts cost is learned anew, as what was kept" in str(said)


@pytest.fixture
def world(served: Any) -> SteeredWorld:
    """A run whose strength wattmesh moves."""
    return SteeredWorld(served)


def test_another_leader_holds_what_the_one_before_held_to_the_last_bit(
    world: SteeredWorld,
) -> None:
    """Costs, what was told, pairs, counts; and it goes on to the clamp as if nothing had been."""
    while world.boundary() < 0.1:
        pass
    told, learner = world.told(), world.served.experts
    before = learner._runs[messages.RUN]
    world.begin_to_lead()
    after = learner._runs[messages.RUN]
    assert after is not before
    for part in ("costs", "telling", "loop", "step", "launch", "seq"):
        assert getattr(after, part) == getattr(before, part), part
    assert after.held_at_s == pytest.approx(before.held_at_s, abs=1e-3)
    now = world.told()
    assert replace(now, age_s=0.0) == replace(told, age_s=0.0)
    assert now.age_s < 30
    while world.boundary() < 0.2 - 1e-9:
        pass
    assert world.told().scores == told.scores


def test_a_stop_is_kept_though_the_run_does_not_know_of_it(world: SteeredWorld) -> None:
    """The run's checkpoint is older than its stop, and the daemon is another one: it stays 0."""
    while world.boundary() < 0.1:
        pass
    leaning = dict(world.leans)
    world.gap = 1e6
    world.boundary()
    assert world.told().stopped
    world.gap = 0.001
    world.begin_to_lead()
    world.leans = leaning
    world.served.experts.turn()
    assert {world.report(**leaning, gap=0.001).status} == {200}
    world.served.experts.turn()
    assert (world.told().stopped, world.told().strength) == (True, 0.0)


def test_a_count_that_was_learned_is_not_learned_again(world: SteeredWorld) -> None:
    """A hook that was not answered says it again, to a daemon that knows it from the journal."""
    while world.boundary() < 0.1:
        pass
    world.begin_to_lead()
    known = world.served.experts._runs[messages.RUN]
    pairs, costs = known.loop.quality.pairs, known.costs
    world.seq -= 1
    assert world.report(**world.leans, gap=0.5).status == 200
    world.pass_s(5.0)
    world.read()
    assert (known.loop.quality.pairs, known.costs) == (pairs, costs)


@pytest.mark.parametrize("how", ["cut", "flipped", "form", "type", "deep", "empty", "number"])
def test_what_is_damaged_or_of_another_form_is_learned_anew(world: SteeredWorld, how: str) -> None:
    """One sentence, no scores, and the run is learned again; other runs are not touched."""
    world.save_steps(4)
    assert world.told().version > 0
    text = world.served.journal.expert_learning.all()[messages.RUN]
    parts = json.loads(text)
    spoilt = {
        "cut": text[:-30],
        "flipped": re.sub('"spans":.', '"spans":9', text, count=1),
        "form": text.replace(f'"form":{FORM}', f'"form":{FORM + 1}'),
        "type": json.dumps({**parts, "state": [1]}),
        "deep": "[" * 100_000,
        "empty": "",
        "number": re.sub('"spans":.', '"spans":NaN', text, count=1),
    }[how]
    assert spoilt != text
    put(world, spoilt)
    world.begin_to_lead()
    assert (world.told().version, world.told().scores) == (0, {})
    assert "is learned anew, as what was kept of it is" in world.why()[-1]
    world.save_steps(4)
    assert world.told().version > 0


def put(world: SteeredWorld, text: str) -> None:
    """Write another text for the run."""
    store, epoch = world.served.journal.expert_learning, world.served.loop_facts.lead.epoch or 0
    store.keep(messages.RUN, text, now=world.served.clock.wall, epoch=epoch)


def test_another_sweep_in_the_settings_is_learned_from_anew(world: SteeredWorld) -> None:
    """What is told stays until then, and a sentence says it."""
    world.save_steps(4)
    before = world.told()
    other = replace(world.served.sweeps[GPUS[0]], idle_w=90.0)
    world.served.sweeps[GPUS[0]] = other
    world.begin_to_lead()
    assert "the settings name another sweep of a GPU" in world.why()[-1]
    world.read()
    assert (world.told().version, world.told().scores) == (before.version, before.scores)
    world.save_steps(4)
    lines = {each["gpu"]: each for each in world.served.get(COSTS).body["gpus"]}
    assert lines[GPUS[0]]["spans"] < 6
    assert lines[GPUS[0]]["idle_w"] > lines[GPUS[1]]["idle_w"] + 5


def test_who_does_not_lead_any_more_keeps_nothing(world: SteeredWorld) -> None:
    """The text of a later epoch is not overwritten, and what was not kept is not told."""
    world.save_steps(4)
    text, told = world.served.journal.expert_learning.all(), world.told()
    world.served.journal.leadership.release("test", world.served.loop_facts.lead.epoch or 0)
    assert world.served.journal.leadership.acquire("another", 60.0)
    world.act(strength=0.4)
    with pytest.raises(Fenced):
        world.save_steps(1)
    assert world.served.journal.expert_learning.all() == text
    assert world.told().version == told.version


def test_of_a_run_that_ended_nothing_is_kept(world: SteeredWorld) -> None:
    """Neither after its end, nor where it ended while nobody led."""
    for at_once in (True, False):
        world.save_steps(4) if at_once else put(world, "whatever")
        assert world.served.journal.expert_learning.all()
        if at_once:
            path = f"/v1/runs/{messages.RUN}/finish"
            assert world.served.post(path, messages.finish()).status == 200
            world.served.experts.turn()
        else:
            world.begin_to_lead()
        assert world.served.journal.expert_learning.all() == {}


numbers = st.floats(allow_nan=False, allow_infinity=False)
marks = st.builds(
    CounterMark,
    at_s=numbers,
    energy_j=numbers,
    dark_s=numbers,
    lit_s=numbers,
    setting=st.builds(ClockAndLimit, clock_mhz=st.none() | st.integers(0, 9999)),
    since_s=numbers,
    simulated=st.booleans(),
)
counts = st.builds(
    RunCount,
    at_s=numbers,
    launch=st.text(max_size=5),
    layout=st.text(max_size=5),
    tokens=st.dictionaries(st.text(max_size=5), st.integers(0, 2**60), max_size=3),
    marks=st.dictionaries(st.text(max_size=5), marks, max_size=2),
    gap=st.none() | numbers,
)
token_costs = st.builds(
    TokenCost,
    estimate=st.tuples(numbers, numbers),
    covariance=st.tuples(numbers, numbers, numbers),
    noise_j2=numbers,
    spans=st.integers(0, 10**6),
    at=st.just(ClockAndLimit(limit_w=700)),
    simulated=st.booleans(),
    sweep=st.just(
        OfflineSweep(
            joules_per_token=0.1,
            idle_w=0.2,
            joules_per_token_deviation=1 / 3,
            idle_w_deviation=1e-9,
        )
    ),
)


@given(
    before=st.none() | counts,
    costs=st.dictionaries(st.text(max_size=5), token_costs, max_size=3),
    gaps=st.lists(st.floats(-2, 2), max_size=6),
    scores=st.dictionaries(st.text(max_size=5), numbers, max_size=3),
)
@trying(max_examples=60, deadline=None)
def test_what_is_read_is_what_was_written(
    before: RunCount | None,
    costs: dict[str, TokenCost],
    gaps: list[float],
    scores: dict[str, float],
) -> None:
    """Every float to its last bit, whatever it is; and a flipped digit is refused."""
    quality = PairedEvidence()
    for gap in gaps:
        quality = judged(quality, gap, 0.1)
    told = PublishedScores(version=2**53 - 1, strength=0.1, by_gpu=scores, neutral_because="")
    kept = KeptLearning(
        costs=RunCosts(
            before=before, costs=costs, times={"a": GpuTime(seconds=0.1, seconds_per_token=1e-9)}
        ),
        telling=Telling(told=told, spans=2),
        quality=quality,
        before=before,
        step=StrengthStep(strength=0.1 + 0.2, stopped=False, why="because"),
        launch="one",
        seq=7,
        held_at_s=1795269600.123,
    )
    text = kept_text(kept)
    assert read_kept(text) == kept
    assert kept_text(read_kept(text)) == text
    learning, anew = taken_up(kept, {}, kept.held_at_s + 5.0, 100.0)
    assert learning.held_at_s == pytest.approx(95.0)
    assert anew == ""
    with pytest.raises(InputInvalid, match="damaged"):
        read_kept(text.replace('"seq":7', '"seq":8'))


def test_a_number_that_is_none_is_not_kept_and_time_that_went_back_makes_it_old() -> None:
    """Nothing wrong can come back of it."""
    kept = Learning(costs=RunCosts()).to_keep(Telling(), {}, 100.0, 5.0)
    with pytest.raises(InputInvalid, match="not kept"):
        kept_text(replace(kept, held_at_s=float("nan")))
    learning, _ = taken_up(kept, {}, kept.held_at_s - 1.0, 5.0)
    assert learning.held_at_s < -1e8


def test_texts_are_kept_with_their_sentence_on_each_database(journal: Journal) -> None:
    """Replaced, forgotten, and both only by the leader of the epoch."""
    store, at = journal.expert_learning, datetime(2026, 11, 20, 12, tzinfo=UTC)
    epoch = journal.leadership.acquire("here", 60.0)
    assert epoch is not None
    said = Event(kind="expert_costs", detail="learned")
    store.keep("one", "a", now=at, epoch=epoch)
    store.keep("one", "b", now=at, epoch=epoch, event=said)
    store.keep("two", "c" * 100_000, now=at, epoch=epoch)
    assert store.all() == {"one": "b", "two": "c" * 100_000}
    assert [each.detail for each in journal.events.list(kind="expert_costs")] == ["learned"]
    with pytest.raises(Fenced):
        store.keep("one", "late", now=at, epoch=epoch - 1, event=said)
    with pytest.raises(Fenced):
        store.forget(["one"], epoch=epoch + 1)
    assert store.all()["one"] == "b"
    assert len(journal.events.list(kind="expert_costs")) == 1
    store.forget(["one", "three"], epoch=epoch)
    assert set(store.all()) == {"two"}
