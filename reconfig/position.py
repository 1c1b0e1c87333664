"""The training position, in units that do not depend on the layout. Torch-free."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The training position, in units that do not depend on the layout.

    Attributes:
        step: optimizer steps done.
        samples, tokens: consumed over all ranks.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
