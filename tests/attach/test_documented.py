"""The smaller blocks of docs/attach.md train when they are filled in as they say."""

from pathlib import Path

from tests.hook.harness import Zygote
from wattmesh.reconfig.universal.folder import CheckpointKind, read_manifest

PATIENCE_S = 150.0


def said(zygote: Zygote, folder: Path, job: str) -> list[str]:
    """Run one of them on two ranks without a daemon; what rank 0 and 1 wrote, in that order."""
    launch = zygote.start(
        2, {"REAL": str(folder / "run")}, folder, f"tests.attach.jobs.documented:{job}"
    )
    status = zygote.wait(launch, PATIENCE_S)
    logs = [path.read_text() for path in sorted(folder.glob("rank-*.log"))]
    assert status == 0, logs
    return "".join(logs).splitlines()


def test_the_short_script_trains_to_its_end(zygote: Zygote, tmp_path: Path) -> None:
    """Every rank trains each step; the end that was asked for comes at the first save step."""
    lines = said(zygote, tmp_path, "short")
    steps = [int(line.split()[1]) for line in lines if line.startswith("trained ")]
    assert steps == [*range(20), *range(20)]
    assert lines.count("ended done") == 2
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-00000020"]


def test_an_own_checkpointer_and_a_tracker_are_written_as_the_page_has_them(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Its asynchronous save becomes a checkpoint of ours, and one rank tells each step once."""
    lines = said(zygote, tmp_path, "own_save_and_tracker")
    tracked = [line.split() for line in lines if line.startswith("tracked ")]
    assert [int(step) for _, _, step, _ in tracked] == [1, 2, 3, 4]
    assert {again for *_, again in tracked} == {"False"}
    assert len({run for _, run, *_ in tracked}) == 1
    assert lines.count("ended done") == 2
    (saved,) = (tmp_path / "run").glob("step-*")
    assert read_manifest(saved).kind is CheckpointKind.VIRTUAL
    assert read_manifest(saved).source["folder"] == f"{tmp_path}/run-mine/step-4"
