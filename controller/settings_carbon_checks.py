"""What the keys of one `[carbon]` table must be together, and what their files must be.

Invariant: every check yields (key path, sentence) pairs and none of them stops the others.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from wattmesh.controller.settings_carbon import CarbonSection, CarbonSourceSection
from wattmesh.controller.settings_words import Mistake, quoted
from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.sources import ZONES, carbon_source

NESO_ONLY = ("base_url",)
CSV_ONLY = ("file", "starts_at", "plays_at", "compress")


def carbon_mistakes(carbon: CarbonSection) -> Iterator[Mistake]:
    """Name every mistake in `[carbon]`."""
    yield from source_mistakes("carbon.accounting", carbon.accounting)
    if carbon.decision is not None:
        yield from source_mistakes("carbon.decision", carbon.decision)


def source_mistakes(key: str, source: CarbonSourceSection) -> Iterator[Mistake]:
    """Check what each provider needs and what it does not know."""
    zones = ZONES.get(source.provider)
    if zones is not None and source.zone not in zones:
        known = ", ".join(zones)
        yield (
            f"{key}.zone",
            f"{quoted(source.zone)} is not a zone of {source.provider}; it serves {known}",
        )
    foreign = NESO_ONLY if source.provider == "csv" else CSV_ONLY
    for name in foreign:
        if getattr(source, name) != CarbonSourceSection.model_fields[name].default:
            other = "neso" if source.provider == "csv" else "csv"
            yield f"{key}.{name}", f'is only read when provider = "{other}"'
    if source.provider == "csv":
        yield from _trace(f"{key}.file", source)


def _trace(key: str, source: CarbonSourceSection) -> Iterator[Mistake]:
    """A recorded trace must be there, and whole."""
    if source.file is None:
        yield key, 'is missing: provider = "csv" needs the recorded trace'
        return
    try:
        carbon_source(source.source(), datetime.now(UTC))
    except InputInvalid as error:
        yield key, str(error)
