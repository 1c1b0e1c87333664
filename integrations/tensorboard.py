"""TensorBoard: a run's energy and grams as scalars beside its loss, through the script's writer.

    energy = EnergyToTensorBoard(run, writer)     # run: of wattmesh.observe or wattmesh.attach
    ...
    energy(step)                                  # after a step; never waits
    ...
    energy.close()                                # before writer.close()

Numbers are scalars; signal, flags and boundary are texts, written when they change.
"""

from typing import Any, Protocol

from wattmesh.reconfig.client.figure_log import EVERY_S, FigureLog, LoggedFigures, MeasuredRun


class ScalarWriter(Protocol):
    """What is used of a `SummaryWriter`: torch's, tensorboardX's."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """Write one number."""
        ...

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> Any:
        """Write one text."""
        ...

    def flush(self) -> Any:
        """Write what is held back."""
        ...


class EnergyToTensorBoard(FigureLog):
    """Writes to a `SummaryWriter`."""

    def __init__(self, run: MeasuredRun, writer: ScalarWriter, *, every_s: float = EVERY_S) -> None:
        """Take the run and the writer; see `FigureLog` for `every_s`."""
        super().__init__(run, _Scalars(writer), every_s=every_s)


class _Scalars:
    """Numbers as scalars; words as text, when they change."""

    def __init__(self, writer: ScalarWriter) -> None:
        self._writer = writer

    def write(self, figures: LoggedFigures) -> None:
        """Write one step."""
        for name, value in figures.numbers.items():
            self._writer.add_scalar(name, value, figures.step)
        for name, text in figures.changed.items():
            self._writer.add_text(name, text, figures.step)
        self._writer.flush()
