"""On a real GPU, read-only: no setting of it is touched. What is seen is printed (`-s`)."""

import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import pytest

from wattmesh.reconfig.gpus.own_gpus import own_gpus
from wattmesh.telemetry.energy.burst import Burst
from wattmesh.telemetry.readings import Quality
from wattmesh.telemetry.sources.nvml import ENERGY, POWER_INSTANT, TOTAL_ENERGY, Nvml, NvmlFailed
from wattmesh.telemetry.sources.nvml_source import NvmlSource

pytestmark = pytest.mark.gpu

FIELDS = (ENERGY, TOTAL_ENERGY, POWER_INSTANT)


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    """The driver's own library."""
    try:
        opened = Nvml.open()
    except NvmlFailed as error:
        pytest.skip(f"no GPU here: {error}")
    with opened:
        if opened.is_fake:  # dlopen finds a library by its SONAME: another test loaded ours here
            pytest.skip("the fake library is loaded in this process")
        if not opened.uuids():
            pytest.skip("the driver sees no GPU")
        yield opened


def test_a_real_board_is_read_whole(nvml: Nvml) -> None:
    """Every GPU tells power, energy, limits and clock, and is measured."""
    source = NvmlSource()
    readings = source.read()
    source.close()
    assert {each.gpu_uuid for each in readings} == set(nvml.uuids())
    for each in readings:
        assert each.quality is Quality.MEASURED
        assert each.power_w is not None
        assert 5 < each.power_w < 2000
        assert each.power_limit_w is not None
        print(each)


def test_how_often_the_counter_moves_and_what_a_reading_costs(nvml: Nvml) -> None:
    """The counter never falls; its steps and the cost of a call are printed."""
    uuid = nvml.uuids()[0]
    looks = []
    until_s = time.monotonic() + 3
    while (now_s := time.monotonic()) < until_s:
        looks.append((now_s, nvml.fields(uuid, FIELDS)))
    costs = [later[0] - earlier[0] for earlier, later in pairwise(looks)]
    counters = [(at_s, told.get(ENERGY, told.get(TOTAL_ENERGY))) for at_s, told in looks]
    known = [(at_s, counter) for at_s, counter in counters if counter is not None]
    assert known, f"no counter: {looks[0][1]}"
    moved = [later[0] for earlier, later in pairwise(known) if later[1] > earlier[1]]
    assert all(later[1] >= earlier[1] for earlier, later in pairwise(known))
    periods = [later - earlier for earlier, later in pairwise(moved)]
    print(f"fields {looks[0][1]}; one call {1e6 * median(costs):.0f} us; ", end="")
    print(f"counter moves every {1e3 * median(periods):.1f} ms" if periods else "counter stands")


def test_counter_and_power_agree(nvml: Nvml) -> None:
    """Over five seconds the counter and the sum of power are within a third of each other."""
    uuid = nvml.uuids()[0]
    source = NvmlSource()
    source.read()
    with Burst(source, [uuid]) as looking:
        powers = _powers(nvml, uuid, 0.2)
        start_s = time.monotonic()
        powers += _powers(nvml, uuid, 5.0)
        end_s = time.monotonic()
        powers += _powers(nvml, uuid, 0.2)
    source.close()
    mine = looking.figures(start_s, end_s)[uuid]
    assert mine.power_w is not None
    ratio = mine.power_w / (sum(powers) / len(powers))
    print(f"{mine}; counter over power {ratio:.3f}")
    assert 0.67 < ratio < 1.5


def _powers(nvml: Nvml, uuid: str, seconds: float) -> list[float]:
    """Read power for a while."""
    until_s, powers = time.monotonic() + seconds, []
    while time.monotonic() < until_s:
        powers.append(nvml.power_w(uuid))
        time.sleep(0.01)
    return powers


def test_a_process_that_computes_finds_its_own_gpu(nvml: Nvml) -> None:
    """As torch names it once CUDA is used, in NVML's words."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    held = torch.zeros(1, device="cuda")
    found = own_gpus()
    print(found, held.device)
    assert len(found.uuids) == 1
    assert set(found.uuids) <= set(nvml.uuids())
