"""Weights & Biases: a run's energy and grams beside its loss, online or offline.

    energy = EnergyToWandb(run, wandb.run)        # run: of wattmesh.observe or wattmesh.attach
    ...
    energy(step)                                  # after a step; never waits
    ...
    energy.close()                                # before wandb.finish()

The figures join the script's own rows of history (`commit=False`), so no step of its charts moves;
their own axis is `wattmesh/step`.
"""

from typing import Any, Protocol

from wattmesh.reconfig.client.figure_log import EVERY_S, FigureLog, LoggedFigures, MeasuredRun

AXIS = "wattmesh/step"


class HistoryRun(Protocol):
    """What is used of a `wandb.Run`."""

    def define_metric(self, name: str, step_metric: str | None = None) -> Any:
        """Name the axis of a series."""
        ...

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> Any:
        """Write a row of history, or a part of one."""
        ...


class EnergyToWandb(FigureLog):
    """Writes to a `wandb.Run`."""

    def __init__(
        self, run: MeasuredRun, wandb_run: HistoryRun, *, every_s: float = EVERY_S
    ) -> None:
        """Take the run and that of Weights & Biases; see `FigureLog` for `every_s`."""
        super().__init__(run, _Rows(wandb_run), every_s=every_s)


class _Rows:
    """Numbers and words as parts of the script's rows."""

    def __init__(self, run: HistoryRun) -> None:
        self._run = run
        self._defined = False

    def write(self, figures: LoggedFigures) -> None:
        """Write one step."""
        if not self._defined:
            self._run.define_metric(AXIS)
            self._run.define_metric("wattmesh/*", step_metric=AXIS)
            self._defined = True
        row = {**figures.numbers, **figures.words, AXIS: figures.step}
        self._run.log(row, commit=False)
