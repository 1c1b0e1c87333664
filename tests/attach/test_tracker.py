"""An experiment tracker: who logs, under which run, and which steps were done again."""

from pathlib import Path

from tests.attach.running import UserRun
from tests.hook.harness import Zygote, worst_difference
from wattmesh.reconfig.client.reached import ReachedStepFile, read


def test_every_step_is_logged_once_and_steps_done_again_are_flagged(
    zygote: Zygote, tmp_path: Path, plain: dict[int, float]
) -> None:
    """Two switches, and a rank killed after step 7: steps 5 to 7 are done again, and say so."""
    turns = [(4, {"tp": 2}), (8, {"dp_shard": 2})]
    run = UserRun(zygote, tmp_path, 2, layout={"dp_shard": 2}, turns=turns, kill_at=7)
    assert run.supervised() == 0, (run.said, run.log())
    tracked = run.tracked()
    first = [line for line in tracked if line["attempt"] == 1]
    again = [line for line in tracked if line["attempt"] == 2]
    reached = first[-1]["step"]
    assert [line["step"] for line in first] == list(range(1, reached + 1))
    assert [line["step"] for line in again] == list(range(5, 13))
    assert not any(line["again"] for line in first)
    assert [line["step"] for line in again if line["again"]] == list(range(5, reached + 1))
    assert len({line["run"] for line in tracked}) == 1
    assert worst_difference(run.losses(), plain) <= 1e-5


def test_how_far_a_run_came_survives_its_end_and_never_goes_back(tmp_path: Path) -> None:
    """Whoever leads writes; what is cut short or missing means that nothing is known."""
    path = tmp_path / "reached"
    assert read(path) == 0
    one, other = ReachedStepFile(path), ReachedStepFile(path)
    one.note(7)
    other.note(5)
    assert read(path) == 7
    other.note(8)
    assert read(path) == 8
    path.write_bytes(b"")
    assert read(path) == 0
    ReachedStepFile(tmp_path / "gone" / "reached").note(3)
