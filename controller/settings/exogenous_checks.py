"""Check the keys of `[[carbon.exogenous]]` tables, and the files they name."""

from collections.abc import Iterator, Sequence

from wattmesh.controller.settings.exogenous import ExogenousSection
from wattmesh.controller.settings.mistakes import Mistake, quoted
from wattmesh.controller.settings.secrets import is_credential, secret_mistakes
from wattmesh.controller.settings.web_address import NO_USER, address_mistake, holds_user
from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.exogenous.opened import READS, WITH_TOKEN, exogenous_provider

SPECIAL = tuple(dict.fromkeys(key for keys in READS.values() for key in keys))
"""Keys that not every provider reads."""


def exogenous_mistakes(several: Sequence[ExogenousSection]) -> Iterator[Mistake]:
    """Name every mistake in them."""
    seen: set[tuple[str, str]] = set()
    for number, each in enumerate(several):
        key = f"carbon.exogenous[{number}]"
        found = tuple(_mistakes(key, each))
        yield from found
        if (each.provider, each.zone) in seen:
            yield key, f"{each.provider} of {quoted(each.zone)} is named twice; name it once"
        seen.add((each.provider, each.zone))
        if not found:
            try:
                exogenous_provider(each.settings())
            except InputInvalid as error:
                name = "places" if each.provider == "open_meteo" else "zone"
                yield f"{key}.{name}", str(error).removeprefix("carbon: ")


def _mistakes(key: str, each: ExogenousSection) -> Iterator[Mistake]:
    for name in SPECIAL:
        if getattr(each, name) and name not in READS[each.provider]:
            readers = " or ".join(f'"{who}"' for who, keys in READS.items() if name in keys)
            yield f"{key}.{name}", f"is only read when provider = {readers}"
    if not each.zone or ":" in each.zone:
        yield f"{key}.zone", f"{quoted(each.zone)} is not a zone; give a name without ':'"
    for name in ("base_url", "past_url"):
        url = getattr(each, name)
        wrong = address_mistake(url, "https://mirror.example:8443") if url else ""
        if wrong:
            yield f"{key}.{name}", wrong
        elif url and holds_user(url):
            yield f"{key}.{name}", NO_USER
    if each.provider not in WITH_TOKEN:
        return
    if each.token_file is None:
        what = f'is missing: provider = "{each.provider}" needs the file with the token'
        yield f"{key}.token_file", what
    elif not is_credential(each.token_file):
        yield from secret_mistakes(f"{key}.token_file", each.token_file)
