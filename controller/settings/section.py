"""What every table of the settings file has in common, and its kinds of values.

Invariant: keys are exact; an unknown one is a mistake, never ignored.
"""

from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict

from wattmesh.controller.settings.paths_and_times import as_path, as_time

File = Annotated[Path, BeforeValidator(as_path)]
"""A path; `~` is the home folder, a relative one counts from the folder of the settings file."""

Time = Annotated[AwareDatetime, BeforeValidator(as_time)]
"""A moment with its time zone, e.g. 2026-12-01T00:00:00Z."""


class Section(BaseModel):
    """One table of the file: keys are exact, unknown ones are mistakes."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )
