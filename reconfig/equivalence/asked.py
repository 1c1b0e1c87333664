"""What a validated launch is asked to watch, and the files in which it answers. Torch-free.

Invariant: a file that is missing or cut is an answer that was not given, never an error.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from wattmesh.errors import InputInvalid

_ASKED = "asked-checks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedChecks:
    """What to watch in one launch.

    Attributes:
        every: the gradient of the first step after each multiple of this is kept.
        reorder_after: from the end of this step on every product is summed in `parts`; 0: never.
        keep_state: whether the state at the newest boundary is kept on disk.
        largest_bytes: a state above this is not gathered, for rank 0 holds it twice.
        seed: from which the launch's random streams are derived; 0: they stay the script's own.
        sampled: whether only a sample of every gradient is kept. Of a job that draws random numbers
            a sample of the state at every boundary is kept in any case.
    """

    every: int
    reorder_after: int = 0
    parts: int = 1
    keep_state: bool = False
    largest_bytes: int = 8 << 30
    seed: int = 0
    sampled: bool = False


@dataclass(slots=True, kw_only=True)
class JobFacts:
    """What a launch found out about its job.

    Attributes:
        fingerprint: as `Fingerprint.to_dict` gives it.
        parameters: dtypes of the parameters. products: the coarsest one of products; "": not seen.
        state_bytes: of the unsharded state, about. too_large_bytes: the same where it was larger
            than asked for; else 0.
        device_bytes: memory of one device; None: no device.
        dropout: layers that drop at random. draws: whether steps drew random numbers.
        unsaved_schedule: whether a schedule sets an optimizer's rate, and none is in the state.
    """

    fingerprint: dict[str, str] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    products: str = ""
    state_bytes: int = 0
    too_large_bytes: int = 0
    device_bytes: int | None = None
    dropout: list[str] = field(default_factory=list)
    draws: bool = False
    unsaved_schedule: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTripRow:
    """V1 of one event. `how`: "switch", "rollback" or "load"."""

    how: str
    origin: str
    target: str
    step: int
    measured: float
    sentence: str


@dataclass(frozen=True, slots=True)
class ValidationFiles:
    """The files of one launch."""

    folder: Path

    @property
    def facts(self) -> Path:
        """What the launch found out."""
        return self.folder / "facts.json"

    @property
    def round_trips(self) -> Path:
        """V1 of every event, a line each."""
        return self.folder / "round-trips.jsonl"

    @property
    def state(self) -> Path:
        """The state at the newest boundary."""
        return self.folder / "state.npz"

    def gradient(self, step: int) -> Path:
        """The gradient of one step."""
        return self.folder / f"gradient-{step}.npz"

    def stepped(self, step: int) -> Path:
        """What one step made of parameters and optimizer."""
        return self.folder / f"stepped-{step}.npz"

    def sample(self, step: int) -> Path:
        """A sample of the state at the boundary of one step."""
        return self.folder / f"sample-{step}.npz"

    def ask(self, asked: AskedChecks) -> None:
        """Write the request."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _ASKED).write_text(json.dumps(asdict(asked)), encoding="utf-8")

    def asked(self) -> AskedChecks | None:
        """Read the request; None where nothing is to be watched.

        Raises:
            InputInvalid: there is one that cannot be read.
        """
        path = self.folder / _ASKED
        if not path.exists():
            return None
        try:
            return AskedChecks(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise InputInvalid(
                f"{path} cannot be read ({error}); validate into a new folder"
            ) from error

    def read_facts(self) -> JobFacts | None:
        """Read what the launch found out; None where it wrote nothing."""
        try:
            return JobFacts(**json.loads(self.facts.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def read_round_trips(self) -> tuple[RoundTripRow, ...]:
        """Read all V1 rows; a cut line is left out."""
        if not self.round_trips.exists():
            return ()
        rows: list[RoundTripRow] = []
        for line in self.round_trips.read_bytes().splitlines():
            try:
                rows.append(RoundTripRow(**json.loads(line)))
            except (ValueError, TypeError):
                continue
        return tuple(rows)
