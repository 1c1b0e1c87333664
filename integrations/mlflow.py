"""MLflow: a run's energy and grams as metrics beside its loss, through the script's client.

    energy = EnergyToMlflow(run, MlflowClient(), mlflow.active_run().info.run_id)
    ...                                           # run: of wattmesh.observe or wattmesh.attach
    energy(step)                                  # after a step; never waits for the server
    ...
    energy.close()                                # before mlflow.end_run()

The client's calls may wait for a server: they are made in a thread of ours.
"""

from typing import Any, Protocol

from wattmesh.reconfig.client.figure_log import EVERY_S, FigureLog, LoggedFigures, MeasuredRun


class MetricClient(Protocol):
    """What is used of an `MlflowClient`."""

    def log_metric(
        self,
        run_id: str,
        key: str,
        value: float,
        timestamp: int | None = None,
        step: int | None = None,
    ) -> Any:
        """Write one number."""
        ...

    def set_tag(self, run_id: str, key: str, value: Any) -> Any:
        """Write one text; the newest stays."""
        ...


class EnergyToMlflow(FigureLog):
    """Writes through an `MlflowClient`."""

    def __init__(
        self, run: MeasuredRun, client: MetricClient, run_id: str, *, every_s: float = EVERY_S
    ) -> None:
        """Take the run, the client and MLflow's id of the run; see `FigureLog` for `every_s`."""
        super().__init__(run, _Metrics(client, run_id), every_s=every_s)


class _Metrics:
    """Numbers as metrics; words as tags, when they change."""

    def __init__(self, client: MetricClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def write(self, figures: LoggedFigures) -> None:
        """Write one step."""
        for name, text in figures.changed.items():
            self._client.set_tag(self._run_id, name, text)
        for name, value in figures.numbers.items():
            self._client.log_metric(self._run_id, name, value, step=figures.step)
