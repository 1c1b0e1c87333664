"""The chain: of each device the best source that tells anything, and no joule twice."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.sampler.test_sampler import GRID
from tests.telemetry.world import T0, MemoryBook
from wattmesh.controller.daemon.power import power_source
from wattmesh.controller.settings.model import (
    PowerSection,
    PrometheusSection,
    Settings,
    StaticPowerSection,
)
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.energy.sampler import Sampler
from wattmesh.telemetry.fake_nvml import Board, FakeNvml
from wattmesh.telemetry.readings import PowerReading, Quality
from wattmesh.telemetry.sources.chain import Chain, LastReading, best
from wattmesh.telemetry.sources.static_power import StaticPower


def reading(source: str, gpu: str = "G0", power_w: float | None = 300.0) -> PowerReading:
    """Make a reading; without a power it tells nothing."""
    return PowerReading(
        gpu_uuid=gpu,
        at=T0,
        monotonic_s=1.0,
        power_w=power_w,
        energy_mj=None,
        clock_mhz=None,
        power_limit_w=700.0,
        source=source,
        quality=Quality.MEASURED,
    )


def chosen(
    *offered: Sequence[PowerReading],
    told: dict[str, LastReading] | None = None,
    now_s: float = 100.0,
) -> dict[str, str]:
    """Give by whom each device is told; the chain began long ago."""
    made, _ = best(offered, told or {}, now_s, began_s=0.0, patience_s=3.0)
    return {gpu: each.source for gpu, each in made.items()}


def test_the_first_source_that_tells_a_device_is_taken() -> None:
    """Each device is told once, by the best that can."""
    assert chosen(
        [reading("a", "G0")], [reading("b", "G0"), reading("b", "G1")], [reading("c", "G1")]
    ) == {"G0": "a", "G1": "b"}


def test_a_worse_source_waits_for_one_late_answer() -> None:
    """Silence of less than the patience is left to the counter; after it the other stands in."""
    told = {"G0": LastReading(rank=0, at_s=98.0)}
    assert chosen([], [reading("b")], told=told) == {}
    assert chosen([], [reading("b")], told=told, now_s=101.5) == {"G0": "b"}


def test_a_better_source_is_taken_again_at_once() -> None:
    """There is no patience upwards."""
    told = {"G0": LastReading(rank=1, at_s=99.9)}
    assert chosen([reading("a")], [reading("b")], told=told) == {"G0": "a"}


def test_at_the_start_worse_sources_wait_for_better_ones_to_open() -> None:
    """Else the counter that covers an outage of ours would be given up for a guess."""
    offered: list[list[PowerReading]] = [[], [reading("b")]]
    young, _ = best(offered, {}, 2.0, began_s=0.0, patience_s=3.0)
    old, _ = best(offered, {}, 4.0, began_s=0.0, patience_s=3.0)
    assert (list(young), list(old)) == ([], ["G0"])


def test_a_device_that_answers_without_telling_is_shown_when_nobody_tells_more() -> None:
    """A stopped sensor still has a clock; a worse source that does tell takes its place."""
    silent = reading("a", power_w=None)
    told = {"G0": LastReading(rank=0, at_s=50.0)}
    assert chosen([silent], [], told=told) == {"G0": "a"}
    assert chosen([silent], [reading("b")], told=told) == {"G0": "b"}


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ABC"), st.booleans()), max_size=4), max_size=4),
    st.dictionaries(
        st.sampled_from("ABC"),
        st.builds(LastReading, rank=st.integers(0, 4), at_s=st.floats(0, 100)),
    ),
)
def test_no_device_is_ever_told_twice_or_by_a_worse_source_than_offered_long_ago(
    offered: list[list[tuple[str, bool]]], told: dict[str, LastReading]
) -> None:
    """Against brute force: after the patience is over, the first source that tells is taken."""
    made = [
        [reading(str(rank), gpu, 1.0 if tells else None) for gpu, tells in each]
        for rank, each in enumerate(offered)
    ]
    result, after = best(made, told, 200.0, began_s=0.0, patience_s=3.0)
    for gpu in "ABC":
        ranks = [i for i, each in enumerate(offered) if (gpu, True) in each]
        assert (gpu in result and result[gpu].tells) == bool(ranks)
        if ranks:
            assert result[gpu].source == str(ranks[0])
            assert after[gpu] == LastReading(rank=ranks[0], at_s=200.0)


@dataclass
class Scripted:
    """A source that tells what it is given, fails, or hangs."""

    name: str
    readings: list[PowerReading] = field(default_factory=list)
    error: str = ""
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Let calls pass."""
        self.gate.set()

    def gpu_uuids(self) -> Sequence[str]:
        """List its devices."""
        return [each.gpu_uuid for each in self.readings]

    def read(self) -> Sequence[PowerReading]:
        """Tell."""
        self.gate.wait(30)
        if self.error:
            raise SourceUnavailable(self.error)
        return self.readings


def test_a_source_that_fails_or_hangs_costs_only_itself() -> None:
    """The others are told within the deadline; what is wrong is kept by name."""
    broken = Scripted("broken", error="the driver is gone")
    stuck = Scripted("stuck", [reading("stuck", "G1")])
    fine = Scripted("fine", [reading("fine", "G2")])
    chain = Chain([broken, stuck, fine], deadline_s=1.0, patience_s=0.0)
    stuck.gate.clear()
    assert [each.gpu_uuid for each in chain.read()] == ["G2"]
    assert [each.gpu_uuid for each in chain.read()] == ["G2"]
    assert chain.troubles["broken"] == "the driver is gone"
    assert "has not answered" in chain.troubles["stuck"]
    assert chain.name == "broken+stuck+fine"
    assert list(chain.gpu_uuids()) == ["G1", "G2"]
    stuck.gate.set()
    until_s = time.monotonic() + 10
    while len(chain.read()) < 2:
        assert time.monotonic() < until_s
    chain.close()


def test_when_no_source_answers_every_reason_is_said() -> None:
    """One sentence names them all."""
    chain = Chain([Scripted("a", error="no driver"), Scripted("b", error="no server")])
    with pytest.raises(SourceUnavailable, match="a: no driver; b: no server"):
        chain.read()
    with pytest.raises(SourceUnavailable, match="NVML would"):
        chain.compute_pids()
    chain.close()


def test_an_assumed_power_says_that_it_is_estimated() -> None:
    """A static figure is never called measured, and has no counter."""
    (told,) = StaticPower(["G0"], 450.0).read()
    assert (told.power_w, told.energy_mj, told.quality) == (450.0, None, Quality.ESTIMATED)
    assert told.source == "static"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    """Two fake H100."""
    made = FakeNvml.create(tmp_path / "gpus", gpus=2, board=Board.H100, update_ms=0)
    yield made
    made.close()


def test_settings_name_the_chain_and_what_is_not_named_is_not_there(fake: FakeNvml) -> None:
    """Sources come best first; one alone is no chain; none is None."""
    section = PowerSection(
        source="nvml",
        library=fake.library,
        rapl=True,
        prometheus=PrometheusSection(url="http://127.0.0.1:1", exporter="dcgm"),
        static=StaticPowerSection(gpu_power_w=500.0, gpu_uuids=("G0",)),
    )
    chain = power_source(Settings(power=section))
    assert isinstance(chain, Chain)
    assert chain.name == "nvml+rapl+prometheus-dcgm+static"
    assert chain.compute_pids() == {gpu.uuid: () for gpu in fake.gpus}
    chain.close()
    alone = power_source(Settings(power=section.model_copy(update={"rapl": False})))
    assert isinstance(alone, Chain)
    alone.close()
    assert power_source(Settings()) is None
    assert power_source(Settings(power=PowerSection(source="agents"))) is None


def test_a_gpu_that_is_lost_is_estimated_and_settled_when_it_is_back(fake: FakeNvml) -> None:
    """A stand-in's guess is taken back from its own counter: the sum is what the counter moved."""
    gpu = fake.gpu(0)
    gpu.draw(400.0)
    section = PowerSection(
        source="nvml",
        library=fake.library,
        static=StaticPowerSection(gpu_power_w=650.0, gpu_uuids=(gpu.uuid,)),
    )
    made = power_source(Settings(power=section))
    assert isinstance(made, Chain)
    chain = Chain(made.sources, patience_s=0.0)
    book = MemoryBook()
    sampler = Sampler(chain, book, GRID, boot_id="boot", hold_s=5.0, deadline_s=10.0)
    sources = set()

    def step() -> PowerReading:
        sample = sampler.step(T0, time.monotonic(), {})
        (mine,) = (each for each in sample.readings if each.gpu_uuid == gpu.uuid)
        sources.add(mine.source)
        return mine

    first = step()
    for _ in range(5):
        step()
    gpu.lose()
    for _ in range(10):
        step()
    gpu.come_back()
    until_s = time.monotonic() + 20
    last = step()
    while time.monotonic() < until_s:
        last = step()
        sampler.flush()
        booked_mj = sum(
            row.energy_mj or 0 for row in book.rows.values() if row.gpu_uuid == gpu.uuid
        )
        if last.source == "nvml" and booked_mj == (last.energy_mj or 0) - (first.energy_mj or 0):
            break
    assert sources == {"nvml", "static"}
    assert booked_mj == (last.energy_mj or 0) - (first.energy_mj or 0)
    assert book.counters[gpu.uuid].source == "nvml"
    sampler.close()


def test_a_reading_of_another_source_is_never_compared_with_the_counter() -> None:
    """A chain whose stand-in has a counter of its own books each counter's own differences."""
    first = Scripted("first")
    second = Scripted("second")
    now = [0.0]
    chain = Chain([first, second], patience_s=0.0, monotonic=lambda: now[0])
    book = MemoryBook()
    sampler = Sampler(chain, book, GRID, boot_id="boot", hold_s=5.0, deadline_s=10.0)
    truth_w, base = 300.0, reading("first")

    def at(second_: int, *, lost: bool) -> None:
        now[0] = float(second_)
        mine = replace(base, monotonic_s=now[0], energy_mj=round(1000 * truth_w * second_))
        first.readings = [] if lost else [mine]
        second.readings = [
            replace(mine, source="second", energy_mj=10**12 + round(1000 * truth_w * second_))
        ]
        sampler.step(T0, now[0], {})

    for index in range(30):
        at(index, lost=10 <= index < 20)
    sampler.flush()
    assert book.energy_mj == 29 * 300_000
    assert book.unobserved_ms == 0
    chain.close()
