"""`wattmesh report RUN --model-card`: the block `co2_eq_emissions` of a model card. Pure.

The keys are those of the Hub's page "Displaying carbon emissions for your model"
(huggingface.co/docs/hub/model-cards-co2): `emissions` in grams, `source`, `training_type`,
`geographical_location`, `hardware_used`.

Invariant: there is no block without grams. The source names method, signal and boundary, and says
what the figure is beside measured and what is missing in it. What only people know is left out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import wattmesh
from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.accounting.run_facts import not_read, priced_g, state, why_no_grams
from wattmesh.errors import RetryLater

FIGURES = 9
"""Of the emissions: enough that nothing is lost to the microgram in a run of a kilogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardWords:
    """What only people know of a training; "" is left out of the block."""

    training_type: str = ""
    location: str = ""
    hardware: str = ""


def model_card(view: Mapping[str, Any], said: CardWords) -> list[str]:
    """Write the block as lines of YAML.

    Args:
        view: the answer of `GET /v1/runs/{run}/report`.
        said: what people add.

    Raises:
        RetryLater: the run has no figure of grams; the message says why.
    """
    spent = view["spent"]
    grams = priced_g(spent)
    if grams is None or not math.isfinite(grams):
        raise RetryLater(
            f"{spent['name']} has no figure of grams, so there is no block to write: "
            f"{why_no_grams(spent)}"
        )
    signal = spent["carbon"][0]["signal"]
    provider, zone = (*signal.split(":"), "", "")[:2]
    lines = [
        "co2_eq_emissions:",
        f"  emissions: {quantities.figures(grams, FIGURES)}  # grams",
        f"  source: {quoted(_source(view, signal))}",
    ]
    if said.training_type:
        lines.append(f"  training_type: {quoted(said.training_type)}")
    place = said.location or f"grid zone {zone} of {provider}"
    lines.append(f"  geographical_location: {quoted(place)}")
    hardware = said.hardware or _hardware(view)
    if hardware:
        lines.append(f"  hardware_used: {quoted(hardware)}")
    return lines


def quoted(text: str) -> str:
    """Write a text as YAML's double-quoted scalar, in ASCII: nothing in it can end it."""
    return f'"{"".join(_escaped(each) for each in text)}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if " " <= char <= "~":
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _source(view: Mapping[str, Any], signal: str) -> str:
    spent = view["spent"]
    flags = set(spent["flags"]) | set(spent["carbon"][0]["flags"])
    parts = [
        f"wattmesh {wattmesh.__version__}, run {spent['name']}, {state(view)}",
        f"energy of {view['boundary']}, slot by slot times the location-based grid intensity "
        f"{signal}",
    ]
    if "simulated" in flags:
        parts.append("SIMULATED: not the emissions of real hardware or of a real grid hour")
    if "estimated" in flags:
        parts.append("estimated in part")
    if "provisional" in flags:
        parts.append("provisional: the newest intervals are not measured yet")
    if spent["unpriced_j"]:
        parts.append(f"incomplete: {formats.joules(spent['unpriced_j'])} have no grams yet")
    if spent["unobserved_s"]:
        parts.append(f"incomplete: {not_read(spent, ())}")
    parts.append("without embodied carbon, network and storage")
    return "; ".join(parts)


def _hardware(view: Mapping[str, Any]) -> str:
    """Count its GPUs where any were read; their kind is not known here."""
    if not view["spent"]["meter_scope"]:
        return ""
    line = view["line"]
    return formats.plural(line["world_size"] or line["ranks"], "GPU")
