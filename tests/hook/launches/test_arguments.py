"""The numbers that launchers are started with: what makes no sense is refused before any launch."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest

from wattmesh.integrations import torchrun
from wattmesh.integrations.kubernetes import __main__ as kubernetes
from wattmesh.integrations.slurm import __main__ as slurm
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.asleep import HoldAnswer, HoldRequest
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.sleeper import LATE, Sleeper, _launches

SCRIPT = ("--", "script.py")
RUN = "3a7c1a52-3d0f-4b6c-8d5e-0a3f7f6a9c11"
POD = ("run", "--job=j", "--job-uid=u", "--host=0", "--address=a", "--nproc=1")

Main = Callable[[Sequence[str]], int]


@pytest.mark.parametrize(
    ("main", "begin", "option"),
    [
        *((torchrun.main, ("--nproc=1",), each) for each in ("--nproc=0", "--nproc=-1")),
        *((torchrun.main, ("--nproc=1",), each) for each in ("--hosts=0", "--max-restarts=-1")),
        *((torchrun.main, ("--nproc=1",), each) for each in ("--stop-grace=nan", "--nproc=1.5")),
        *((slurm.main, ("run",), each) for each in ("--most-per-node=-2", "--ranks-per-node=0")),
        *((slurm.main, ("run",), each) for each in ("--max-restarts=-1", "--stop-grace=inf")),
        *((kubernetes.main, POD, each) for each in ("--nproc=0", "--stop-grace=-1")),
        *((kubernetes.main, POD, each) for each in ("--host=-1", "--max-restarts=-1")),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_before_anything_starts(
    main: Main,
    begin: Sequence[str],
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No ranks were launched five times in vain; a grace of nan never ended a job by force."""
    folder = tmp_path / "run"
    with pytest.raises(SystemExit) as ended:
        main([*begin, option, f"--checkpoint-dir={folder}", *SCRIPT])
    assert ended.value.code == 2
    assert f"argument {option.partition('=')[0]}: " in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(("main", "begin"), [(slurm.main, ("run",)), (kubernetes.main, POD)])
def test_the_twin_with_numbers_that_do_gets_further(
    main: Main,
    begin: Sequence[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks for the job that it runs in, and this is none."""
    for name in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    numbers = ("--max-restarts=0", "--stop-grace=0")
    assert main([*begin, *numbers, f"--checkpoint-dir={tmp_path}", *SCRIPT]) == 1
    assert "is not set: start this in a" in capsys.readouterr().err


@pytest.mark.parametrize("wakes_at", ["9999-12-31T23:59:00+00:00", "2026-12-01T00:00:00+00:00"])
def test_a_time_at_the_end_of_the_calendar_ends_no_supervisor(
    tmp_path: Path, wakes_at: str
) -> None:
    """Such a launch may begin at any time; of others it is known when they are of no use."""
    folder, said = RunFolder(tmp_path), list[str]()
    asked = HoldRequest(key="plan-1", run=RUN, ranks=2, wakes_at=wakes_at)
    asleep.write(folder.hold_file, asked)
    Sleeper(folder, None, Event(), said.append).serve()
    answer = asleep.read(folder.held_file, HoldAnswer)
    assert answer is not None
    assert answer.problem == ""
    (ordered,) = _launches(asked)
    late = datetime(2026, 12, 1, tzinfo=UTC) + LATE
    assert ordered.begins_by == (None if wakes_at[0] == "9" else late)
