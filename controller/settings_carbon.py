"""The keys of `[carbon]`: which grid signals to account with and to decide on.

Invariant: secrets are never in the file itself; a key that needs one names a file that only its
owner can read.
"""

from typing import Literal

from pydantic import Field

from wattmesh.controller.settings_section import File, Section, Time
from wattmesh.integrations.carbon.neso import BASE_URL
from wattmesh.integrations.carbon.sources import SourceSettings


class CarbonSourceSection(Section):
    """One grid signal."""

    provider: Literal["csv", "neso"] = Field(examples=["neso"])
    """`neso` (Great Britain, live, no key needed) or `csv` (a recorded trace)."""
    zone: str = Field(examples=["GB"])
    """Zone of the grid, as the provider names it."""
    file: File | None = Field(default=None, examples=["/etc/wattmesh/trace.csv"])
    """csv: the recorded trace."""
    starts_at: Time | None = Field(default=None, examples=["2023-06-14T00:00:00Z"])
    """csv: the moment of the recording that plays first; default its beginning."""
    plays_at: Time | None = Field(default=None, examples=["2026-12-01T00:00:00Z"])
    """csv: the moment of today's clock at which it plays; default the daemon's start."""
    compress: float = Field(default=1.0, gt=0, le=1e6)
    """csv: seconds of the recording that pass in one second."""
    base_url: str = Field(
        default="", examples=["https://api.carbonintensity.org.uk"], pattern="^(https?://.+)?$"
    )
    """neso: another address of the same interface, e.g. a mirror inside the cluster."""
    stale_after_s: float | None = Field(default=None, gt=0, examples=[5400.0])
    """Seconds without an answer after which nothing carbon-motivated is done; default three
    polls of the provider."""

    def source(self) -> SourceSettings:
        """Give what opening the source needs."""
        return SourceSettings(
            provider=self.provider,
            zone=self.zone,
            file=self.file,
            starts_at=self.starts_at,
            plays_at=self.plays_at,
            compress=self.compress,
            base_url=self.base_url or BASE_URL,
        )


class CarbonSection(Section):
    """The grid signals: one to account with, one to decide on."""

    accounting: CarbonSourceSection
    """Signal that grams are booked with (average)."""
    decision: CarbonSourceSection | None = None
    """Signal that decisions look at; default the accounting one."""
