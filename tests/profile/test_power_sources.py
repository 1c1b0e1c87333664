"""Whole profiles over sources that stop, restart, wrap or are another's: right, or a sentence.

What the devices truly draw is known, because the acting job draws it: 1000 W at A, 300 W at B, of
the host 500 W and 300 W.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.profile.test_agent_page import served
from tests.profile.test_measuring import ACT as QUICK
from tests.profile.test_measuring import JOB, shell
from tests.telemetry.sources.prometheus_server import Prometheus, Series, prometheus
from wattmesh.controller.profile.job import JobPower, PowerKind, ProfileJob
from wattmesh.controller.profile.profile import Profile, profile
from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE, Board, FakeNvml

ACT = replace(QUICK, step_s={"dp2": 0.012, "1 rank": 0.018})
"""Sources are looked at for seconds: quick steps would make hundreds of intervals of them."""

SCRAPED_S = 0.2


@dataclass
class Scraped:
    """Two fake GPUs, scraped now and then by a real exporter's names into a server's memory.

    Attributes:
        offset_mj: what the exporter adds to the counters of the boards; it restarts by this.
        paused: nothing is scraped. uuids: as the exporter labels the boards.
        history: (time, GPU, counter in mJ, watts).
    """

    folder: Path
    fake: FakeNvml
    server: Prometheus
    offset_mj: int = 0
    paused: bool = False
    uuids: dict[int, str] = field(default_factory=dict)
    history: list[tuple[float, int, int, float]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    told: list[str] = field(default_factory=list)

    def scrape(self) -> None:
        """Scrape until it is over."""
        while not self.over.wait(SCRAPED_S):
            if self.paused:
                continue
            for at, gpu in enumerate(self.fake.gpus):
                true = gpu.truth()
                counter = max(0, round(true.counter_mj) - self.offset_mj)
                self.history.append((time.time(), at, counter, true.power_w))

    def restart(self) -> None:
        """Let the exporter count from nothing again."""
        self.offset_mj = round(min(each.truth().counter_mj for each in self.fake.gpus))

    def answer(self, query: str) -> dict[str, object]:
        """Answer as the server does, of what was scraped."""
        now_s = time.time()
        series = []
        for at in range(len(self.fake.gpus)):
            mine = [each for each in list(self.history) if each[1] == at]
            label = {"UUID": self.uuids[at]} if self.uuids[at] else {"gpu": str(at)}
            energy = [(now_s - each[0], str(each[2])) for each in mine]
            power = [(now_s - each[0], str(each[3])) for each in mine]
            series.append(Series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", label, energy))
            series.append(Series("DCGM_FI_DEV_POWER_USAGE", label, power))
        self.server.series = series
        return Prometheus.answer(self.server, query)

    def profiled(self, at_b: Callable[["Scraped"], object], **power: object) -> Profile:
        """Profile the acting job; when it begins at B, something happens."""
        where = JobPower(kind=PowerKind.PROMETHEUS, url=self.server.url, every_s=SCRAPED_S)

        def launcher(job: ProfileJob, command: Sequence[str]) -> Sequence[str]:
            return ["sh", "-c", f"{FOLDER_VARIABLE}={self.folder / 'gpus'} {shell(ACT)}"]

        def tell(text: str) -> None:
            self.told.append(text)
            if text == "B (1 rank) trains":
                at_b(self)

        job = replace(
            JOB,
            power=replace(where, **power),  # type: ignore[arg-type]
            warm_switches=False,
            precision=0.5,
            longest_s=8.0,
            idle_s=2.0,
        )
        return profile(job, self.folder / "p", tell, launcher=launcher)


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Scraped]:
    """Idle GPUs, and a server that has scraped them."""
    fake = FakeNvml.create(tmp_path / "gpus", gpus=2, board=Board.H100, update_ms=0)
    for each in fake.gpus:
        each.draw(55.0)
    with prometheus() as server:
        made = Scraped(tmp_path, fake, server)
        made.uuids = {at: each.uuid for at, each in enumerate(fake.gpus)}
        server.answer = made.answer  # type: ignore[method-assign]
        thread = threading.Thread(target=made.scrape)
        thread.start()
        try:
            yield made
        finally:
            made.over.set()
            thread.join()
    fake.close()


def pause(scraped: Scraped) -> None:
    """Scrape nothing for some seconds, then go on."""
    scraped.paused = True
    threading.Timer(2.0, setattr, (scraped, "paused", False)).start()


@pytest.mark.parametrize(
    ("fault", "what"),
    [(lambda _: None, "none"), (pause, "a gap"), (Scraped.restart, "a restart of the exporter")],
)
def test_what_a_server_scraped_is_what_was_drawn(
    scraped: Scraped, fault: Callable[[Scraped], object], what: str
) -> None:
    """Also over a gap, and after counters began again: the truth lies in every interval."""
    found = scraped.profiled(fault)
    assert found.progress.refused == {}, what
    a, b = found.catalogue.points
    for point, watts in ((a, 1000), (b, 300)):
        assert point.spread is not None
        assert point.spread < 1
        assert point.power_w == pytest.approx(watts, rel=point.spread)
        assert point.power_w == pytest.approx(watts, rel=0.3)
    assert a.sources["power_w"] == "measured"


def test_a_series_that_grows_stale_is_no_power(scraped: Scraped) -> None:
    """What was measured before stays; the point in which it stopped says so."""
    found = scraped.profiled(lambda mine: setattr(mine, "paused", True))
    assert [each.id for each in found.catalogue.points] == ["A"]
    assert unknown(found)


def unknown(found: Profile) -> bool:
    """Tell whether B has no figure because too little of its power, or nothing, was read."""
    why = found.progress.refused["B"]
    return "its power was not known throughout" in why or "its joules are known to ±" in why


def test_a_server_that_goes_away_is_no_power(scraped: Scraped) -> None:
    """The sentence has what it answered."""
    found = scraped.profiled(lambda mine: setattr(mine.server, "body", b"<html>"))
    assert [each.id for each in found.catalogue.points] == ["A"]
    assert unknown(found)
    assert "the newest reading is" in found.progress.refused["B"]


def test_power_of_other_gpus_is_refused(scraped: Scraped) -> None:
    """The server's boards are not those that the job names: busy ones would pass for its own."""
    scraped.uuids = {0: "GPU-of-somebody", 1: "GPU-else"}
    for each in scraped.fake.gpus:
        each.draw(400.0)
    with pytest.raises(WattmeshError, match=r"the job computes on GPU-.* reads 2 other GPUs"):
        scraped.profiled(lambda _: None)


def test_series_without_a_board_are_a_sentence(scraped: Scraped) -> None:
    """An exporter whose labels name no UUID, or a selector that selects nothing."""
    with pytest.raises(InputInvalid, match=r"gives no GPU's power: .*is the exporter scraped"):
        scraped.profiled(lambda _: None, selector='cluster="none"')
    assert not list(scraped.folder.glob("p/launch-*/job.log"))


@dataclass
class Host:
    """A powercap tree below a folder, which the acting job draws from."""

    folder: Path
    told: list[str] = field(default_factory=list)

    @property
    def zone(self) -> Path:
        """The one package."""
        return self.folder / "powercap" / "intel-rapl:0"

    def make(self, range_uj: int) -> None:
        """Write the tree."""
        self.zone.mkdir(parents=True)
        (self.zone / "name").write_text("package-0")
        (self.zone / "energy_uj").write_text("1000")
        (self.zone / "max_energy_range_uj").write_text(str(range_uj))
        (self.zone / "constraint_0_power_limit_uw").write_text("700000000")

    def profiled(self, at_b: Callable[["Host"], object]) -> Profile:
        """Profile the acting job; when it begins at B, something happens."""
        act = replace(ACT, powercap=str(self.zone.parent))

        def launcher(job: ProfileJob, command: Sequence[str]) -> Sequence[str]:
            return ["sh", "-c", shell(act)]

        def tell(text: str) -> None:
            self.told.append(text)
            if text == "B (1 rank) trains":
                at_b(self)

        power = JobPower(kind=PowerKind.RAPL, powercap=str(self.zone.parent))
        job = replace(JOB, power=power, warm_switches=False, precision=0.3, longest_s=15.0)
        return profile(job, self.folder / "p", tell, launcher=launcher)


def test_a_counter_of_the_host_that_wraps_is_counted_on(tmp_path: Path) -> None:
    """It wraps several times in every window."""
    host = Host(tmp_path)
    host.make(range_uj=300_000_000)
    a, b = host.profiled(lambda _: None).catalogue.points
    assert a.power_w == pytest.approx(500, rel=0.15)
    assert b.power_w == pytest.approx(300, rel=0.15)


def test_a_counter_of_the_host_that_is_lost_is_told(tmp_path: Path) -> None:
    """In the middle of a point: it has no numbers but the reason, and the others stay."""
    host = Host(tmp_path)
    host.make(range_uj=262_143_328_850)
    found = host.profiled(lambda mine: (mine.zone / "energy_uj").unlink())
    assert [each.id for each in found.catalogue.points] == ["A"]
    assert "its power was not known throughout" in found.progress.refused["B"]
    assert "energy_uj" in found.progress.refused["B"]


def test_a_counter_of_the_host_that_begins_again_adds_nothing(tmp_path: Path) -> None:
    """It is no wrap: that would be a quarter of a megajoule in a tenth of a second."""
    host = Host(tmp_path)
    host.make(range_uj=262_143_328_850)
    found = host.profiled(lambda mine: (mine.zone / "energy_uj").write_text("0"))
    assert found.progress.refused == {}
    assert found.catalogue.points[1].power_w == pytest.approx(300, rel=0.2)


@dataclass
class Page:
    """Two fake GPUs as an agent's page tells them; it may restart, or stop moving."""

    folder: Path
    fake: FakeNvml
    url: str = ""
    offset_j: float = 0.0
    frozen: str = ""

    def text(self) -> str:
        """Give the page."""
        if self.frozen:
            return self.frozen
        lines = []
        for each in self.fake.gpus:
            true, name = each.truth(), f'gpu_uuid="{each.uuid}"'
            joules = max(0.0, true.counter_mj / 1000 - self.offset_j)
            lines.append(f"wattmesh_gpu_energy_joules_total{{{name}}} {joules}")
            lines.append(f'wattmesh_gpu_power_watts{{{name},window="instant"}} {true.power_w}')
        return "\n".join([*lines, ""])

    def restart(self) -> None:
        """Count from nothing, as an agent does that was started anew."""
        self.offset_j = min(each.truth().counter_mj for each in self.fake.gpus) / 1000


def test_an_agent_that_restarts_is_read_on(tmp_path: Path) -> None:
    """Its counters begin again; the window begins after that, and the watts are the true ones."""
    fake = FakeNvml.create(tmp_path / "gpus", gpus=2, board=Board.H100, update_ms=0)
    for each in fake.gpus:
        each.draw(55.0)
    page = Page(tmp_path, fake)

    def launcher(job: ProfileJob, command: Sequence[str]) -> Sequence[str]:
        return ["sh", "-c", f"{FOLDER_VARIABLE}={tmp_path / 'gpus'} {shell(ACT)}"]

    def tell(text: str) -> None:
        if text == "B (1 rank) trains":
            page.restart()

    with served(page.text) as page.url:
        power = JobPower(kind=PowerKind.AGENT, url=page.url)
        job = replace(JOB, power=power, warm_switches=False, precision=0.6, longest_s=8.0)
        found = profile(job, tmp_path / "p", tell, launcher=launcher)
    fake.close()
    a, b = found.catalogue.points
    assert a.power_w == pytest.approx(1000, rel=0.2)
    assert b.power_w == pytest.approx(300, rel=0.2)
