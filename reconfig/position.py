"""Where training stands, in units that no layout changes. Torch-free."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where training stands, in units that no layout changes.

    Attributes:
        step: optimizer steps done. `samples`, `tokens`: consumed globally, over all ranks.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
