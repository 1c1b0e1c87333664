"""Power that is lost while a point is measured, or is not that of the job; over real sources."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.profile.test_agent_page import served
from tests.profile.test_measuring import ACT, JOB, shell
from wattmesh.controller.profile.job import JobPower, PowerKind, ProfileJob
from wattmesh.controller.profile.profile import Profile, profile
from wattmesh.errors import InputInvalid
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE, Board, FakeNvml


@dataclass(slots=True)
class Place:
    """Two fake GPUs that the job drives, read by NVML or as an agent's page tells them.

    `shown`: how many the page has; 0: no page.
    """

    folder: Path
    fake: FakeNvml
    url: str = ""
    shown: int = 2
    told: list[str] = field(default_factory=list)

    def page(self) -> str:
        """Give the page of metrics."""
        lines = []
        for each in self.fake.gpus[: self.shown]:
            true, name = each.truth(), f'gpu_uuid="{each.uuid}"'
            lines.append(f"wattmesh_gpu_energy_joules_total{{{name}}} {true.counter_mj / 1000}")
            lines.append(f'wattmesh_gpu_power_watts{{{name},window="instant"}} {true.power_w}')
        return "\n".join([*lines, ""]) if lines else ""

    def profiled(
        self, power: PowerKind, at_b: Callable[["Place"], object], longest_s: float = 6.0
    ) -> Profile:
        """Profile the acting job; when it begins at B, something happens."""
        where = JobPower(kind=power, library=str(self.fake.library), url=self.url)

        def launcher(job: ProfileJob, command: Sequence[str]) -> Sequence[str]:
            return ["sh", "-c", f"{FOLDER_VARIABLE}={self.folder / 'gpus'} {shell(ACT)}"]

        def tell(text: str) -> None:
            self.told.append(text)
            if text == "B (1 rank) trains":
                at_b(self)

        job = replace(JOB, power=where, warm_switches=False, precision=0.5)
        job = replace(job, longest_s=longest_s)
        return profile(job, self.folder / "p", tell, launcher=launcher)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Idle GPUs, and the page that tells them."""
    fake = FakeNvml.create(tmp_path / "gpus", gpus=2, board=Board.H100, update_ms=0)
    made = Place(tmp_path, fake)
    for each in fake.gpus:
        each.draw(55.0)
    with served(made.page) as made.url:
        yield made
    fake.close()


def test_an_agents_page_measures(place: Place) -> None:
    """Watts of the layout's GPUs, and of the one that it parks."""
    found = place.profiled(PowerKind.AGENT, lambda _: None, longest_s=120.0)
    a, b = found.catalogue.points
    assert a.power_w == pytest.approx(1000, rel=0.2)
    assert b.power_w == pytest.approx(300, rel=0.2)
    assert a.sources["power_w"] == "measured"


@pytest.mark.parametrize(
    ("power", "lost", "words"),
    [
        (PowerKind.NVML, lambda place: place.fake.gpus[0].lose(), "was lost or reset"),
        (PowerKind.AGENT, lambda place: setattr(place, "shown", 0), "no agent's metrics at"),
    ],
)
def test_a_point_whose_power_is_lost_has_no_numbers_and_the_others_stay(
    place: Place, power: PowerKind, lost: Callable[[Place], object], words: str
) -> None:
    """One sentence with the reason, and what was measured before is in the catalogue."""
    found = place.profiled(power, lost)
    assert [each.id for each in found.catalogue.points] == ["A"]
    assert "its power was not known" in found.progress.refused["B"]
    assert words in found.progress.refused["B"]


def test_a_counter_that_is_lost_leaves_the_power(place: Place) -> None:
    """What the board draws is read on, and summed up."""
    found = place.profiled(PowerKind.NVML, lambda place: place.fake.gpus[0].without_counter(True))
    assert found.progress.refused == {}
    assert found.catalogue.points[1].power_w == pytest.approx(300, rel=0.1)


def test_fewer_gpus_than_the_job_has_are_refused_before_it_begins(place: Place) -> None:
    """Watts of one board are not those of two."""
    place.shown = 1
    with pytest.raises(InputInvalid, match=r"1 GPUs are read here, the job has 2 processes"):
        place.profiled(PowerKind.AGENT, lambda _: None)
    assert not list(place.folder.glob("p/launch-*/job.log"))
