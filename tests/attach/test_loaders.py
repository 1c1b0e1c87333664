"""Loaders that cannot seek by global sample: they keep their place, and the degree is kept."""

from pathlib import Path

import pytest

from tests.attach.running import UserRun
from tests.hook.harness import Zygote, worst_difference
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.header import header_of
from wattmesh.reconfig.hook.launching.start import AttachRequest, layout_of
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.per_data_rank import data_rank, give_back

DP2, DP2_TP2, TP2 = {"dp_shard": 2}, {"dp_shard": 2, "tp": 2}, {"tp": 2}


@pytest.fixture(scope="module")
def packing(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> UserRun:
    """A job with a packing loader, ordered to dp2 tp2 and back, and to tp2 in between."""
    run = UserRun(
        zygote,
        tmp_path_factory.mktemp("packing"),
        4,
        layout=DP2,
        turns=[(4, DP2_TP2), (8, TP2), (12, DP2)],
        steps=16,
        seekable=False,
    )
    assert run.once() == 0, run.log()
    return run


@pytest.fixture(scope="module")
def unswitched(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The same loader's losses in a job that never switched."""
    folder = tmp_path_factory.mktemp("unswitched")
    run = UserRun(zygote, folder, 2, layout=DP2, steps=16, seekable=False)
    assert run.once() == 0, run.log()
    return run.losses()


def test_a_loader_that_cannot_seek_keeps_its_place_when_tensor_parallel_changes(
    packing: UserRun, unswitched: dict[int, float]
) -> None:
    """Each data parallel rank gets its own state back, on whatever ranks it is now."""
    assert packing.layouts() == ["dp2", "dp2 tp2", "dp2"]
    assert worst_difference(packing.losses(), unswitched) <= 1e-5


def test_an_order_to_another_data_parallel_degree_is_not_taken(packing: UserRun) -> None:
    """It trains on as it is, and the log says why."""
    assert "data parallel degree 1, the run has 2" in packing.log()
    steps = [line["step"] for line in packing.tracked() if line["layout"] == "dp2 tp2"]
    assert steps == list(range(5, 13))


def test_a_place_that_was_lost_would_show(
    unswitched: dict[int, float], plain: dict[int, float]
) -> None:
    """The sabotaged twin: the same job fed with other samples has other losses at once."""
    assert abs(unswitched[1] - plain[1]) > 1e-3


def test_a_launch_at_another_degree_is_refused() -> None:
    """Too few ranks for the old layout, and the one asked for divides the data otherwise."""
    header = header_of(
        run="r",
        attempt=1,
        position=Position(step=4),
        layout=Layout(dp_shard=4),
        ranks=(0, 1, 2, 3),
        digest="",
    )
    few = AttachRequest(layout=Layout(dp_shard=2), ranks=None, launched=2, seekable=False)
    with pytest.raises(InputInvalid, match="data parallel degree must stay 4"):
        layout_of(header, few)
    seekable = AttachRequest(layout=Layout(dp_shard=2), ranks=None, launched=2)
    assert layout_of(header, seekable) == (Layout(dp_shard=2), (0, 1))


class Place:
    """A state that says what it was given."""

    given: object = None

    def state_dict(self) -> dict[str, object]:
        """Give nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Keep it."""
        self.given = state_dict


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [
        (Layout(dp_shard=2, tp=2), [0, 0, 1, 1]),
        (Layout(pp=2, dp_replicate=2, cp=2), [0, 0, 1, 1, 0, 0, 1, 1]),
        (Layout(dp_replicate=2, dp_shard=2), [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_ranks_that_work_on_the_same_samples_get_the_same_state(
    layout: Layout, ranks: list[int]
) -> None:
    """As the mesh's axes say, outermost first; a degree that changed is refused."""
    assert [data_rank(layout, rank) for rank in range(layout.world_size)] == ranks
    degree = layout.data_parallel
    states = {"loader": {str(n): {"at": n} for n in range(degree)}}
    for rank, mine in enumerate(ranks):
        place = Place()
        saved = {"by_data_rank": {"degree": degree, "states": states}}
        give_back({"loader": place}, saved, layout, rank, lambda value: value)
        assert place.given == {"at": mine}
        saved["by_data_rank"]["degree"] = degree + 1
        with pytest.raises(InputInvalid, match=f"saved by {degree + 1} data parallel ranks"):
            give_back({"loader": place}, saved, layout, rank, lambda value: value)


def test_a_resumed_run_is_told_what_its_loader_needs(tmp_path: Path) -> None:
    """A checkpoint without the loader's state is no place to go on from."""
    with pytest.raises(InputInvalid, match="had none of it"):
        give_back({"loader": Place()}, {}, Layout(), 0, lambda value: value)
