"""Check the keys of `[carbon]` tables together, and the files they name.

Invariant: every check yields (key path, sentence) pairs and none of them stops the others.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from wattmesh.controller.settings.carbon import (
    CarbonSection,
    CarbonSourceSection,
    HttpJsonSection,
)
from wattmesh.controller.settings.exogenous_checks import exogenous_mistakes
from wattmesh.controller.settings.mistakes import Mistake, quoted
from wattmesh.controller.settings.secrets import closed, is_credential, secret_mistakes
from wattmesh.controller.settings.web_address import (
    NO_USER,
    address_mistake,
    holds_user,
    in_the_clear,
)
from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.neso import ZONES as NESO_ZONES
from wattmesh.integrations.carbon.neso_region import REGIONS, is_region
from wattmesh.integrations.carbon.providers import PROVIDERS, readers
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.json_shape import G_PER_KWH
from wattmesh.integrations.carbon.sources import provider, read_secret

SECRETS = ("key_file", "password_file", "token_file")
MEANT = {
    "key_file": "the file with the API key",
    "username": "the user name",
    "password_file": "the file with the password",
    "file": "the recorded trace",
    "g_per_kwh": "the number",
    "http_json": "how to ask the service and to read its answer",
    "kind": "average or marginal, as nobody else says what the numbers are",
    "factor": "direct or lifecycle, as nobody else says what the numbers count",
    "gas": "CO2 or CO2eq, as nobody else says what the numbers count",
}
"""What a required key is; follows `needs` in a sentence."""


def carbon_mistakes(carbon: CarbonSection) -> Iterator[Mistake]:
    """Name every mistake in `[carbon]`."""
    yield from accounting_mistakes("carbon.accounting", carbon.accounting)
    if carbon.decision is not None:
        yield from source_mistakes("carbon.decision", carbon.decision)
    for number, each in enumerate(carbon.accounting_fallback):
        yield from _fallback_mistakes(f"carbon.accounting_fallback[{number}]", each, carbon)
    for number, further in enumerate(carbon.report):
        yield from source_mistakes(f"carbon.report[{number}]", further)
    yield from exogenous_mistakes(carbon.exogenous)


def _fallback_mistakes(
    key: str, source: CarbonSourceSection, carbon: CarbonSection
) -> Iterator[Mistake]:
    """Check a fallback source: it must report the same quantity from another series."""
    found = tuple(accounting_mistakes(key, source))
    yield from found
    if found or tuple(accounting_mistakes("carbon.accounting", carbon.accounting)):
        return
    if _closed(source) or _closed(carbon.accounting):
        return
    now = datetime.now(UTC)
    ours = provider(carbon.accounting.source(), now).signal
    other = provider(source.source(), now).signal
    if (ours.kind, ours.factor, ours.gas) != (other.kind, other.factor, other.gas):
        yield (
            key,
            f"is a series of {other.kind} {other.factor} {other.gas}, the accounting signal is "
            f"{ours.kind} {ours.factor} {ours.gas}; no factor makes one of the other, so it cannot "
            "stand in",
        )
    elif other == ours:
        yield key, f"is {other}, which is the accounting signal itself"


def accounting_mistakes(key: str, source: CarbonSourceSection) -> Iterator[Mistake]:
    """Check a source that grams are booked with: it must also be an observed average."""
    found = tuple(source_mistakes(key, source))
    yield from found
    if found or _closed(source):
        return
    opened = provider(source.source(), datetime.now(UTC))
    if not opened.series.observed:
        yield (
            key,
            f"{source.provider} zone {quoted(source.zone)} has forecasts only and never tells what "
            "was; account with another signal and name this one in [carbon.decision]",
        )
    elif opened.signal.kind != "average":
        yield (
            key,
            f"is a {opened.signal.kind} signal, which tells what one kilowatt-hour more would emit "
            "and not what was emitted; account with an average one and name this one in "
            "[carbon.decision]",
        )


def source_mistakes(key: str, source: CarbonSourceSection) -> Iterator[Mistake]:
    """Check a provider's required and foreign keys, then whether the source can be opened."""
    found = (
        *_zone(key, source),
        *_keys_of_other_providers(key, source),
        *_missing(key, source),
        *_address(f"{key}.base_url", source.base_url),
        *_secrets(key, source),
        *_service(key, source.http_json),
    )
    yield from found
    if not found and not _closed(source):
        try:
            provider(source.source(), datetime.now(UTC))
        except InputInvalid as error:
            yield _blamed(key, source), str(error).removeprefix("carbon: ")


def _closed(source: CarbonSourceSection) -> bool:
    """Say whether a source cannot be opened, for its secrets are the service's alone."""
    paths = (getattr(source, name) for name in SECRETS)
    return any(closed(path) for path in paths if path is not None)


def _zone(key: str, source: CarbonSourceSection) -> Iterator[Mistake]:
    """Check the zone of a provider whose zones are known."""
    if source.provider == "neso" and source.zone not in NESO_ZONES and not is_region(source.zone):
        yield (
            f"{key}.zone",
            f"{quoted(source.zone)} is not a zone of neso; it serves {', '.join(NESO_ZONES)} "
            f"(and, to decide on, its regions 1 to {REGIONS} and postcodes like RG10)",
        )


def _keys_of_other_providers(key: str, source: CarbonSourceSection) -> Iterator[Mistake]:
    read = PROVIDERS[source.provider].keys
    for name, info in CarbonSourceSection.model_fields.items():
        others = readers(name)
        if others and name not in read and name in source.model_fields_set:
            given = getattr(source, name) != info.default
            allowed = " or ".join(f'"{each}"' for each in others)
            if given:
                yield f"{key}.{name}", f"is only read when provider = {allowed}"


def _missing(key: str, source: CarbonSourceSection) -> Iterator[Mistake]:
    for name in PROVIDERS[source.provider].needs:
        if getattr(source, name) in (None, ""):
            yield (
                f"{key}.{name}",
                f'is missing: provider = "{source.provider}" needs {MEANT[name]}',
            )


def _address(key: str, url: str) -> Iterator[Mistake]:
    """Check that an address is one and has no password: errors and logs show addresses."""
    wrong = address_mistake(url, "https://mirror.example:8443") if url else ""
    if wrong:
        yield key, wrong
    elif url and holds_user(url):
        yield key, f"{NO_USER}; put it into the file that key_file or password_file names"


def _secrets(key: str, source: CarbonSourceSection) -> Iterator[Mistake]:
    """Check the files of secrets, and that no secret is sent unencrypted."""
    used = [name for name in SECRETS if name in PROVIDERS[source.provider].keys]
    for name in used:
        path = getattr(source, name)
        if path is not None:
            wrong = tuple(secret_mistakes(f"{key}.{name}", path))
            if not is_credential(path) and not closed(path):
                yield from wrong or _secret_file_mistakes(
                    f"{key}.{name}", path, password=name == "password_file"
                )
    if any(getattr(source, name) is not None for name in used):
        yield from in_the_clear(f"{key}.base_url", source.base_url)
        if source.http_json is not None:
            yield from in_the_clear(f"{key}.http_json.url", source.http_json.url)
            ahead = source.http_json.forecast_url
            yield from in_the_clear(f"{key}.http_json.forecast_url", ahead)


def _secret_file_mistakes(key: str, path: Path, *, password: bool) -> Iterator[Mistake]:
    """Check that a secret's file holds one that a header can carry; a password may be any text."""
    try:
        held = read_secret(path)
        _ = Credentials.basic("user", held) if password else Credentials.header("key", held)
    except InputInvalid as error:
        yield key, str(error).removeprefix("carbon: ")


def _service(key: str, service: HttpJsonSection | None) -> Iterator[Mistake]:
    """Check a custom service: one-word headers; a unit of grams per energy, not a percentile."""
    if service is None:
        return
    for name, form in {"token_header": r"[A-Za-z0-9-]+", "token_scheme": r"[A-Za-z0-9-]*"}.items():
        word = getattr(service, name)
        if not re.fullmatch(form, word):
            yield f"{key}.http_json.{name}", f"{quoted(word)} is not one word of letters, 0-9 and -"
    if service.unit not in G_PER_KWH:
        rank = "" if "percent" not in service.unit.lower() else ", and a percentile has no grams"
        yield (
            f"{key}.http_json.unit",
            f"{quoted(service.unit)} is not one of {', '.join(G_PER_KWH)}{rank}",
        )


def _blamed(key: str, source: CarbonSourceSection) -> str:
    """Name the key that is most likely wrong when a source cannot be opened."""
    own = {"csv": "file", "http_json": "http_json", "static": "g_per_kwh"} | {
        name: name for name in ("eia930", "entsoe")
    }
    name = own.get(source.provider, "zone")
    if source.provider == "entsoe" and source.entsoe is None:
        name = "zone"
    return f"{key}.{name}"
