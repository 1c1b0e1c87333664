"""Asks each configured carbon provider what it serves with the configured key.

Invariant: it reads the settings and asks the network, and changes and stores nothing; what a
provider refuses is an answer here, with the next step, and never ends the listing.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from wattmesh.controller.settings.carbon import CarbonSection, CarbonSourceSection
from wattmesh.controller.views import as_json
from wattmesh.errors import (
    AuthFailed,
    InputInvalid,
    NoData,
    NotEntitled,
    RateLimited,
    SandboxData,
    SourceRefused,
    SourceUnavailable,
    UnknownZone,
    WattmeshError,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.providers import PROVIDERS
from wattmesh.integrations.carbon.sources import provider

NEXT: dict[type[WattmeshError], str] = {
    AuthFailed: "Check what is in its key or password file; the daemon asks again by itself.",
    NotEntitled: "Use a zone of your plan, another plan, or another provider.",
    UnknownZone: "Write the zone as the provider spells it.",
    ZoneMismatch: "Write the zone as the provider spells it; nothing is stored meanwhile.",
    SandboxData: "Use a production key: a sandbox answers with invented values.",
    RateLimited: "Wait as long as it says; what is stored stands.",
    NoData: "Check zone and dates; an outage at the provider looks like this too.",
    SourceUnavailable: "Wait: the daemon asks again at the next poll; what is stored stands.",
    SourceRefused: "Correct the settings of this source.",
    InputInvalid: "Correct the settings of this source.",
}
"""What to do next, by the nearest base class of the error."""


def sections(carbon: CarbonSection) -> Iterator[tuple[str, CarbonSourceSection]]:
    """Give every configured source with its key path, in the order of the file's manual."""
    for name in CarbonSection.model_fields:
        value = getattr(carbon, name)
        if isinstance(value, CarbonSourceSection):
            yield f"carbon.{name}", value
        elif isinstance(value, tuple):
            for index, each in enumerate(value):
                yield f"carbon.{name}[{index}]", each


def listed(carbon: CarbonSection | None) -> list[dict[str, Any]]:
    """Describe every provider there is, and name the sources that use it."""
    used = list(sections(carbon)) if carbon is not None else []
    return [
        {
            "provider": name,
            "serves": facts.serves,
            "needs": list(facts.needs),
            "reads": list(facts.reads),
            "terms": facts.terms,
            "used_by": [key for key, section in used if section.provider == name],
        }
        for name, facts in PROVIDERS.items()
    ]


def ask_sources(carbon: CarbonSection) -> list[dict[str, Any]]:
    """Ask every configured source what it serves with its key."""
    return [_asked(key, section) for key, section in sections(carbon)]


def _asked(key: str, section: CarbonSourceSection) -> dict[str, Any]:
    """Ask one source; an error is part of the answer."""
    now = datetime.now(UTC)
    told: dict[str, Any] = {
        "source": key,
        "provider": section.provider,
        "zone": section.zone,
        "signal": "",
        "capabilities": None,
        "error": "",
        "next": "",
    }
    try:
        opened = provider(section.source(), now)
        told["signal"] = str(opened.signal)
        told["capabilities"] = as_json(opened.capabilities(now))
    except (SourceUnavailable, SourceRefused, InputInvalid) as error:
        told["error"] = str(error)
        told["next"] = next(NEXT[each] for each in type(error).__mro__ if each in NEXT)
    return told
