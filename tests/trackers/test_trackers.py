"""TensorBoard, Weights & Biases and MLflow read back what was logged, before the real interface."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.conftest import Served, open_folder, served, settings
from tests.builders.accounts import energy
from tests.cli import world
from tests.daemon.waiting import wait_for
from tests.trackers.wandb_file import history, metrics
from wattmesh.integrations.mlflow import EnergyToMlflow
from wattmesh.integrations.tensorboard import EnergyToTensorBoard
from wattmesh.integrations.wandb import EnergyToWandb
from wattmesh.reconfig.client import figure_log
from wattmesh.reconfig.client.figure_log import FigureLog, LoggedFigures
from wattmesh.reconfig.gpus.own_gpus import OwnGpus
from wattmesh.reconfig.hook import observed
from wattmesh.reconfig.launch.launched import LaunchedProcess
from wattmesh.reconfig.wire.link import DaemonLink

if TYPE_CHECKING:
    from wattmesh.reconfig.hook.session import Session

__all__ = ["open_folder", "served", "settings"]


class Run:
    """The run of the served journal, by the rank that leads."""

    run = "r"
    leads = True


@pytest.fixture
def lived(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A run that has spent joules and grams, of simulated devices, with the daemon's address."""
    world.lived(served, world.SIMULATED)
    monkeypatch.setenv("WATTMESH_URL", f"unix://{served.socket}")
    monkeypatch.setattr(figure_log, "FIRST_PAUSE_S", 0.02)
    return served


def spent(served: Served) -> dict[str, Any]:
    """Ask what the run has spent, apart from the product's client."""
    answer = served.get("/v1/runs/r/spent")
    assert answer.status == 200
    return dict(answer.body)


def told(log: FigureLog, step: int) -> None:
    """Tell a step, and wait until it is written."""
    log(step)
    wait_for(lambda: log._written is not None, "figures")


def check(served: Served, found: dict[str, float]) -> None:
    """Hold what a tracker has against the interface's own answer."""
    truth = spent(served)
    assert truth["flags"] == ["simulated"]
    assert found["wattmesh/energy_j"] == pytest.approx(truth["energy_j"], rel=1e-6)
    assert found["wattmesh/carbon_g"] == pytest.approx(truth["carbon_g"], rel=1e-6)
    assert found["wattmesh/unobserved_gpu_s"] == pytest.approx(truth["unobserved_s"])
    assert (found["wattmesh/is_simulated"], found["wattmesh/is_estimated"]) == (1.0, 0.0)


def test_tensorboard_reads_back_what_was_logged(lived: Served, tmp_path: Path) -> None:
    """Scalars at the step, the signal as a text; the script's own scalar stays."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, while they are imported
        from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
            EventAccumulator,
        )
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
    writer = SummaryWriter(str(tmp_path))
    with EnergyToTensorBoard(Run(), writer) as energy:
        writer.add_scalar("loss", 2.5, 40)
        told(energy, 40)
    writer.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    names = read.Tags()["scalars"]
    assert {each.step for name in names for each in read.Scalars(name)} == {40}
    assert read.Scalars("loss")[0].value == 2.5
    check(lived, {name: read.Scalars(name)[0].value for name in names})
    (signal,) = read.Tensors("wattmesh/signal/text_summary")
    assert signal.tensor_proto.string_val == [spent(lived)["signal"].encode()]


def test_weights_and_biases_reads_back_what_was_logged(
    lived: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline: the figures join the script's rows, whose steps are what they were without us."""
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    import wandb  # noqa: PLC0415 - reads these when it is imported

    quiet = wandb.Settings(x_disable_stats=True, x_disable_machine_info=True, disable_git=True)
    with wandb.init(mode="offline", dir=str(tmp_path), project="p", settings=quiet) as theirs:
        theirs.log({"loss": 2.5})
        with EnergyToWandb(Run(), theirs) as energy:
            told(energy, 40)
        theirs.log({"loss": 2.25})
    wandb.teardown()  # ends the process of theirs that writes
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = history(path)
    assert [(each["_step"], each["loss"]) for each in rows] == [(0, 2.5), (1, 2.25)]
    assert "wattmesh/energy_j" not in rows[0]
    check(lived, rows[1])
    assert (rows[1]["wattmesh/step"], rows[1]["wattmesh/flags"]) == (40, "simulated")
    assert rows[1]["wattmesh/signal"] == spent(lived)["signal"]
    axes = {each.glob_name or each.name: each.step_metric for each in metrics(path)}
    assert axes["wattmesh/*"] == "wattmesh/step"


NOLOAD = "ignore:The ``noload`` loader strategy"


@pytest.mark.filterwarnings(NOLOAD)
def test_mlflow_keeps_no_word_of_an_earlier_launch_or_another_rank(
    lived: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known grams stand neither beside `no price` nor beside the signal of others."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient  # noqa: PLC0415 - reads the variable when it is imported

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run_id = client.create_run(client.create_experiment("e")).info.run_id
    run = Run()

    def tag(name: str) -> Any:
        return client.get_run(run_id).data.tags.get(f"wattmesh/{name}")

    client.set_tag(run_id, "wattmesh/why_unknown", "no price")
    with EnergyToMlflow(run, client, run_id) as energy:
        energy._every_s = 0.05
        told(energy, 40)
        assert tag("why_unknown") == figure_log.NO_MORE
        run.leads = False
        energy(41)
        client.set_tag(run_id, "wattmesh/signal", "another rank's")
        run.leads = True
        energy(42)
        wait_for(lambda: tag("signal") == spent(lived)["signal"], "the signal")


@pytest.mark.filterwarnings(NOLOAD)
def test_mlflow_reads_back_what_was_logged(
    lived: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store in SQLite: metrics at the step, signal and flags as tags."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient  # noqa: PLC0415 - reads the variable when it is imported

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run_id = client.create_run(client.create_experiment("e")).info.run_id
    with EnergyToMlflow(Run(), client, run_id) as energy:
        told(energy, 40)
    client.set_terminated(run_id)
    data = client.get_run(run_id).data
    check(lived, data.metrics)
    (one,) = client.get_metric_history(run_id, "wattmesh/energy_j")
    assert one.step == 40
    assert data.tags["wattmesh/signal"] == spent(lived)["signal"]
    assert data.tags["wattmesh/flags"] == "simulated"


def test_an_observed_script_logs_its_own_run(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `observe` on: nothing while nothing was booked, then the run's joules, and no grams."""
    monkeypatch.setattr(figure_log, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(observed, "own_gpus", lambda: OwnGpus(uuids=("GPU-1",)))
    link = DaemonLink(str(served.socket))
    kept: list[LoggedFigures] = []
    run = observed.ObservedRun("train", LaunchedProcess(), link)
    run.start()
    log = FigureLog(run, Keeper(kept), link=link)
    log._every_s = 0.05
    log(1)
    rows = served.journal.runs
    wait_for(lambda: rows.find(run.run, served.clock.wall) is not None, "its registration")
    assert kept == []
    served.journal.ledger.book([energy(0, 7_000, run=run.run, incarnation="")], [])
    log(2)
    wait_for(lambda: bool(kept), "its joules")
    log.close()
    run.close()
    assert kept[0].numbers["wattmesh/energy_j"] == 7.0
    assert "wattmesh/carbon_g" not in kept[0].numbers
    assert "carbon.accounting" in kept[0].words["wattmesh/why_unknown"]


class Keeper:
    """A tracker that keeps what it is told."""

    def __init__(self, rows: list[LoggedFigures]) -> None:
        """Keep in `rows`."""
        self._rows = rows

    def write(self, figures: LoggedFigures) -> None:
        """Keep one step."""
        self._rows.append(figures)


if TYPE_CHECKING:

    def both_kinds_of_run(
        attached: Session, watched: observed.ObservedRun
    ) -> tuple[figure_log.MeasuredRun, figure_log.MeasuredRun]:
        """Hold mypy to it that what `attach` and `observe` return can be logged."""
        return attached, watched


@pytest.mark.parametrize("broken", [{"wattmesh/carbon_g": 0.0}, {"wattmesh/is_simulated": 0.0}])
def test_a_tracker_that_holds_something_else_is_caught(
    lived: Served, broken: dict[str, float]
) -> None:
    """Sabotaged twin: unknown grams as zero, or a missing word, fail the check above."""
    truth = spent(lived)
    right = {
        "wattmesh/energy_j": truth["energy_j"],
        "wattmesh/carbon_g": truth["carbon_g"],
        "wattmesh/unobserved_gpu_s": truth["unobserved_s"],
        "wattmesh/is_simulated": 1.0,
        "wattmesh/is_estimated": 0.0,
    }
    check(lived, right)
    with pytest.raises(AssertionError):
        check(lived, right | broken)


class FullDisk:
    """A writer of TensorBoard's whose texts fail once."""

    def __init__(self) -> None:
        """Begin full."""
        self.full = True
        self.texts: dict[str, str] = {}

    def add_scalar(self, *_: object) -> None:
        """Take a number."""

    def flush(self) -> None:
        """Do nothing."""

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        """Take a text, the first time not."""
        if self.full:
            self.full = False
            raise OSError(28, "No space left on device")
        self.texts[tag] = text_string


def test_a_text_that_a_full_disk_lost_is_written_again(lived: Served) -> None:
    """And the figures are never without their signal for the rest of the run."""
    writer = FullDisk()
    with EnergyToTensorBoard(Run(), writer) as energy:
        told(energy, 1)
    assert writer.texts["wattmesh/signal"] == spent(lived)["signal"]
