"""What was asked for on the command line, as every part takes it."""

from dataclasses import dataclass
from pathlib import Path

SHORTER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """How the parts are run.

    Attributes:
        device: "cuda"; "cpu" shows that the code runs, and measures nothing of a GPU.
        short: an eighth of the seconds, and small models.
        library: another NVML than the driver's own: the fake one.
    """

    device: str = "cuda"
    short: bool = False
    library: Path | None = None

    def seconds(self, full: float) -> float:
        """Give how long to measure what in full takes `full` seconds."""
        return full / SHORTER if self.short else full
