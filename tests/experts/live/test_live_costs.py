"""Expert costs of a live run over the API: reported, learned from the journal, told."""

import json
import socket
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Served, open_folder, served, settings
from tests.builders import messages
from tests.daemon.process import Answer
from wattmesh.controller.cli.main import main
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import NewestSample
from wattmesh.errors import JournalUnavailable
from wattmesh.policies.decision import Mode
from wattmesh.policies.experts.costs import OfflineSweep
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.experts import STALE_S, ExpertCostScores, ExpertTokenReport
from wattmesh.telemetry.energy.delivery import EnergyBatch, Report
from wattmesh.telemetry.energy.ledger import CounterBaseline
from wattmesh.telemetry.energy.sampler import Sample
from wattmesh.telemetry.readings import PowerReading, Quality

__all__ = ["open_folder", "served", "settings"]

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
JOULES = dict(zip(GPUS, (0.002, 0.002, 0.004, 0.004), strict=True))
IDLE_W, RATE = 70.0, 100_000
COSTS = f"/v1/runs/{messages.RUN}/expert-costs"
TOKENS = f"/v1/runs/{messages.RUN}/expert-tokens"


class World:
    """A run on four GPUs, two of them dear, whose daemon is turned by hand."""

    def __init__(self, served: Served) -> None:
        """Register it; nothing is counted yet."""
        self.served = served
        self.seq = 0
        self.elapsed_s = 0.0
        self.joules = dict(JOULES)
        self.limit_w = 700.0
        self.dark_ms = dict.fromkeys(GPUS, 0)
        self.quality = dict.fromkeys(GPUS, Quality.MEASURED)
        assert served.register(gpus=GPUS).status == 200
        self.act(strength=0.1)
        served.sweeps.update(
            dict.fromkeys(
                GPUS,
                OfflineSweep(
                    joules_per_token=0.003,
                    idle_w=IDLE_W,
                    joules_per_token_deviation=0.002,
                    idle_w_deviation=3.0,
                ),
            )
        )
        served.experts.turn()

    def act(self, *, strength: float, mode: Mode = Mode.ACT) -> None:
        """Let the settings say how far routers may lean."""
        loop_facts = self.served.loop_facts
        section = loop_facts.settings.runs["llama-8b"].model_copy(
            update={"expert_strength": strength}
        )
        runs = {"llama-8b": section}
        loop_facts.settings = loop_facts.settings.model_copy(update={"mode": mode, "runs": runs})

    def beat(self) -> None:
        """The run says that it lives, as its thread does."""
        body = messages.heartbeat()
        assert self.served.post(f"/v1/runs/{messages.RUN}/heartbeat", body).status == 200

    def report(self, **other: Any) -> Answer:
        """The ranks have counted at a save step."""
        self.seq += 1
        values: dict[str, Any] = {
            "run": messages.RUN,
            "incarnation": "incarnation-1",
            "attempt": 1,
            "seq": self.seq,
            "layout": messages.A,
            "tokens": dict.fromkeys(GPUS, int(RATE * self.elapsed_s)),
        }
        return self.served.post(TOKENS, ExpertTokenReport(**values | other).to_json())

    def read(self) -> None:
        """The sampler has booked and read every GPU, and the learner has its turn."""
        self.beat()
        clock = self.served.clock
        counters = [
            CounterBaseline(
                gpu_uuid=gpu,
                energy_mj=0,
                at=clock.wall,
                monotonic_s=clock.monotonic_s,
                boot_id="boot-1",
                source="nvml",
                booked_mj=round(1000 * (IDLE_W + RATE * self.joules[gpu]) * self.elapsed_s),
                unobserved_ms=self.dark_ms[gpu],
            )
            for gpu in GPUS
        ]
        self.served.journal.ledger.book((), counters)
        readings = tuple(
            PowerReading(
                gpu_uuid=gpu,
                at=clock.wall,
                monotonic_s=clock.monotonic_s,
                power_w=300.0,
                energy_mj=0,
                clock_mhz=1900,
                power_limit_w=self.limit_w,
                source="nvml",
                quality=self.quality[gpu],
            )
            for gpu in GPUS
        )
        newest = NewestSample(monotonic_s=clock.monotonic_s, sample=Sample(readings=readings))
        self.served.loop_facts.sampled = newest
        self.served.experts.turn()

    def save_steps(self, count: int) -> None:
        """Pass so many save steps, a minute apart, with a reading 5 s before and after each."""
        for _ in range(count):
            self.pass_s(55.0)
            self.read()
            self.pass_s(5.0)
            assert self.report().status == 200
            self.pass_s(5.0)
            self.read()

    def pass_s(self, seconds: float) -> None:
        """Let time pass, in which the run trains."""
        self.served.clock.pass_s(seconds)
        self.elapsed_s += seconds

    def told(self) -> ExpertCostScores:
        """What the hook hears."""
        answer = self.served.get(COSTS)
        assert answer.status == 200, answer.body
        return ExpertCostScores.from_json(answer.body)


@pytest.fixture
def world(served: Served) -> World:
    """A run that trains."""
    return World(served)


def test_costs_are_learned_from_the_journal_and_told(world: World) -> None:
    """Two dear GPUs of four after four save steps, with their joules to two per cent."""
    assert "no expert-tokens" in world.told().neutral_because
    world.save_steps(1)
    assert (world.told().version, world.told().scores) == (0, {})
    world.save_steps(2)
    # One span, whose noise nobody knows yet.
    assert (world.told().version, world.told().scores) == (0, {})
    world.save_steps(1)
    told = world.told()
    assert told.scores == pytest.approx(dict(zip(GPUS, (-1, -1, 1, 1), strict=True)))
    assert (told.run, told.strength, told.neutral_because) == (messages.RUN, 0.1, "")
    assert told.age_s < 30
    lines = world.served.get(f"{COSTS}?details=yes").body["gpus"]
    assert [line["gpu"] for line in lines] == list(GPUS)
    for line in lines:
        assert line["joules_per_token"] == pytest.approx(JOULES[line["gpu"]], rel=0.02)
        assert line["deviation"] > 0
        assert line["limit_w"] == 700


def test_what_did_not_change_keeps_its_version_and_stays_young(world: World) -> None:
    """Ten more save steps: the same version, so no router is touched."""
    world.save_steps(4)
    version = world.told().version
    world.save_steps(10)
    assert world.told().version == version
    assert world.told().age_s < 30


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_outside_of_act_nothing_leans(world: World, mode: Mode) -> None:
    """Costs are shown, at strength 0."""
    world.act(strength=0.3, mode=mode)
    world.save_steps(4)
    assert world.told().strength == 0.0
    assert any(world.told().scores.values())


def test_a_frozen_run_hears_nothing_new(world: World) -> None:
    """Another strength in the settings does not reach it, and what it was told grows old."""
    world.save_steps(4)
    before = world.told()
    world.served.journal.runs.freeze(
        messages.RUN, reason="", by="a person", now=world.served.clock.wall
    )
    world.act(strength=0.3)
    world.save_steps(20)
    assert world.told().version == before.version
    assert world.told().age_s > STALE_S


def test_identical_gpus_score_exactly_zero(world: World) -> None:
    """No small numbers: zeros."""
    world.joules = dict.fromkeys(GPUS, 0.003)
    world.save_steps(8)
    assert set(world.told().scores.values()) == {0.0}
    assert "cost the same" in world.told().neutral_because


def test_simulated_joules_are_not_compared_with_real_ones(world: World) -> None:
    """One simulated GPU makes all scores 0."""
    world.quality["GPU-d"] = Quality.SIMULATED
    world.save_steps(8)
    assert set(world.told().scores.values()) == {0.0}
    assert "simulated" in world.told().neutral_because


def test_a_limit_that_changed_begins_anew(world: World) -> None:
    """What is learned at it is another cost; until then the answer grows old."""
    world.save_steps(4)
    world.limit_w = 400.0
    world.save_steps(1)
    assert world.told().age_s > 60
    world.joules = dict.fromkeys(GPUS, 0.002) | {"GPU-a": 0.004}
    world.elapsed_s += 3600  # so that totals do not fall
    world.save_steps(4)
    scores = world.told().scores
    assert max(scores, key=lambda gpu: scores[gpu]) == "GPU-a"
    assert world.told().age_s < 30


def test_a_gpu_with_holes_in_its_measurement_teaches_nothing(world: World) -> None:
    """Its spans say why, the others' count, and what was told stays."""
    world.save_steps(4)
    before = world.told()
    for _ in range(6):
        world.dark_ms["GPU-a"] += 1000
        world.save_steps(1)
    lines = world.served.get(f"{COSTS}?details=yes").body["gpus"]
    assert "not measured" in lines[0]["unused"]
    assert lines[1]["unused"] == ""
    assert world.told().scores == before.scores


def test_a_gpu_that_the_run_does_not_use_is_not_learned(world: World) -> None:
    """Neither another run's, nor one that is gone."""
    assert world.report(tokens={"GPU-a": 1, "GPU-z": 9}).body == {"ok": True, "gpus": 1}


def test_a_stepped_wall_clock_teaches_nothing(world: World) -> None:
    """The span over the step is dropped, and costs stay what they were."""
    world.save_steps(4)
    before = world.told()
    world.served.clock.step_wall(7200.0)
    world.served.loop_facts.trusted.take_steps()
    assert world.served.loop_facts.trusted.held_s() > 0
    world.save_steps(2)
    assert world.told().scores == before.scores
    assert world.told().version == before.version


def test_a_standby_says_nothing(world: World) -> None:
    """Its memory may be old; a run keeps what it has."""
    world.save_steps(4)
    world.served.loop_facts.lead = replace(world.served.loop_facts.lead, epoch=None)
    assert (world.told().version, world.told().scores) == (0, {})
    assert world.report().status == 503


@pytest.mark.parametrize(
    ("other", "status"),
    [
        ({"incarnation": "incarnation-0"}, 409),
        ({"attempt": 0}, 409),
        ({"run": "6d1c9d0e-0000-4000-8000-000000000002"}, 422),
    ],
)
def test_a_report_of_another_launch_or_run_is_refused(
    world: World, other: dict[str, Any], status: int
) -> None:
    """A launch that was superseded, and a run that the address does not name."""
    assert world.report(**other).status == status


HOSTILE = [
    b"[" * 100_000,
    b"null",
    b"{}",
    b'{"tokens": {"GPU-a": 1e999}}',
    b'{"tokens": NaN}',
    json.dumps({"tokens": {"GPU-a": -1}}).encode(),
    json.dumps({"tokens": {"GPU-a": 2**61}}).encode(),
    json.dumps({"tokens": {"GPU-a": 0.5}}).encode(),
    json.dumps({"tokens": {"GPU-a": True}}).encode(),
    json.dumps({"tokens": {"": 1}}).encode(),
    json.dumps({"tokens": {"\u202e" * 10: 1}}).encode(),
    json.dumps({"tokens": [1, 2]}).encode(),
    json.dumps({"busy_s": {"GPU-a": -1}}).encode(),
    json.dumps({"age_s": "old"}).encode(),
    json.dumps({"seq": -1}).encode(),
    json.dumps({"strength": -0.1}).encode(),
    json.dumps({"variation": -1.0}).encode(),
    json.dumps({"stopped": "no"}).encode(),
    json.dumps({"gap": 2e6}).encode(),
    json.dumps({"layout": {"tp": "many"}}).encode(),
]


@pytest.mark.parametrize("body", HOSTILE)
def test_hostile_reports_get_one_sentence_and_change_nothing(world: World, body: bytes) -> None:
    """A field at a time out of its range, laid over a report that would be taken."""
    if body.startswith(b"{"):
        good = ExpertTokenReport(
            run=messages.RUN,
            incarnation="incarnation-1",
            attempt=1,
            seq=1,
            layout=Layout(),
            tokens={},
        ).to_json()
        if body == b"{}":
            del good["tokens"]
        body = (
            body if b"N" in body or b"e9" in body else json.dumps(good | json.loads(body)).encode()
        )
    status, answer = posted(world.served.socket, body)
    assert status in (400, 422), answer
    assert answer["error"]
    assert world.served.experts._reports.runs() == ()


def posted(path: Path, body: bytes) -> tuple[int, dict[str, Any]]:
    """Send a body as it is."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20.0)
        client.connect(str(path))
        head = f"POST {TOKENS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    first, _, rest = answer.partition(b"\r\n")
    return int(first.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2])


def test_the_command_shows_what_a_run_is_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is known one sentence; then each GPU with its joules and its score."""
    words = ("experts", "costs", "llama-8b", "--socket", str(world.served.socket))
    assert main(list(words)) == 0
    assert "the run has reported no expert-tokens" in capsys.readouterr().out
    world.save_steps(4)
    assert main(list(words)) == 0
    out = capsys.readouterr().out
    assert "strength 0.1" in out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("GPU-")] == [
        "-1.00",
        "-1.00",
        "+1.00",
        "+1.00",
    ]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == world.told().version
    assert main(["experts", "costs", "nobody", *words[3:]]) != 0
    assert "There is no run 'nobody'" in capsys.readouterr().err


def test_another_layout_keeps_what_was_told_until_it_is_learned(world: World) -> None:
    """One save step in it: the same version, growing old; strength 0 goes through at once."""
    world.save_steps(4)
    before = world.told()
    world.pass_s(60.0)
    assert world.report(layout=messages.B).status == 200
    world.pass_s(5.0)
    world.read()
    world.pass_s(5.0)
    world.read()
    assert (world.told().version, world.told().scores) == (before.version, before.scores)
    assert world.told().age_s > before.age_s
    world.act(strength=0.0)
    world.read()
    assert (world.told().strength, world.told().scores) == (0.0, before.scores)
    (newest, *_) = world.served.journal.events.list(kind="expert_costs")
    assert "strength 0, by what was learned in the layout before" in newest.detail


def test_simulated_joules_say_so_and_an_ended_run_is_told_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the sentence of `why`; and after its end nobody is told what was learned."""
    world.quality = dict.fromkeys(GPUS, Quality.SIMULATED)
    world.save_steps(4)
    assert main(["why", "llama-8b", "--socket", str(world.served.socket)]) == 0
    assert "4 mJ on GPU-c (simulated)." in capsys.readouterr().out
    assert world.served.post(f"/v1/runs/{messages.RUN}/finish", messages.finish()).status == 200
    world.served.experts.turn()
    assert world.told().neutral_because.startswith("the run is finished")


def test_every_change_is_one_sentence_in_why(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first costs, and another strength; a journal that takes no sentence lets nothing out."""
    world.save_steps(4)
    world.act(strength=0.2)
    world.save_steps(2)
    assert main(["why", "llama-8b", "--socket", str(world.served.socket)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "expert costs" in line]
    assert ["strength 0.2" in told[0], "strength 0.1" in told[1], len(told)] == [True, True, 2]
    assert "2 mJ on GPU-a and 4 mJ on GPU-c" in told[0]
    before = world.told()
    world.act(strength=0.3)
    with closing(sqlite3.connect(world.served.folder / "journal.db")) as database:
        database.execute("ALTER TABLE events RENAME TO gone")
    with suppress(JournalUnavailable):
        world.read()
    with closing(sqlite3.connect(world.served.folder / "journal.db")) as database:
        database.execute("ALTER TABLE gone RENAME TO events")
    assert world.told().version == before.version
    world.read()
    assert world.told().strength == 0.3


def test_the_newest_counter_of_each_device_is_found_on_each_database(journal: Journal) -> None:
    """The daemon's own, and what an agent delivered; a device that nobody knows is left out."""
    at = datetime(2026, 11, 20, 12, tzinfo=UTC)
    plain = CounterBaseline(
        gpu_uuid="GPU-a", energy_mj=5, at=at, monotonic_s=1.0, boot_id="b", booked_mj=10
    )
    later = replace(plain, at=at + timedelta(seconds=9), booked_mj=30)
    other = replace(plain, gpu_uuid="GPU-b")
    journal.ledger.book((), [plain, other])
    batch = EnergyBatch(node="n1", boot_id="b", seq=1, at=at, rows=(), baselines=(later,))
    device = {"at": at.isoformat(), "source": "nvml"}
    report = Report(batch=batch, devices={"GPU-a": device}, missing=(), facts={})
    assert journal.nodes.deliver("n1", report, (), at)
    named = ["GPU-a", "GPU-b", *(f"GPU-{at}" for at in range(500))]
    assert journal.counters.newest(named) == {"GPU-a": later, "GPU-b": other}
    for kind, detail in (("one", "a: x"), ("one", "b: x"), ("two", "a: y"), ("one", "a_: x")):
        journal.events.add(kind, detail, at)
    assert [each.detail for each in journal.events.list(kind="one", begins="a: ")] == ["a: x"]
    assert [each.detail for each in journal.events.list(begins="a_")] == ["a_: x"]
