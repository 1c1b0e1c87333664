"""What the report of a run says, fact by fact, for its screen and its page. Pure.

Invariant: each figure has its flags beside it, and names its signal, its boundary or its baseline;
one that is not known is `-` with the reason, never 0.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.accounting.period_screen import signal_words
from wattmesh.controller.marks import marked

View = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of the report: what it is, the figure, and what that rests on."""

    name: str
    figure: str
    rests_on: str = ""


def facts(view: View) -> list[Fact]:
    """Say what the answer of `GET /v1/runs/{run}/report` tells."""
    return [
        _energy(view),
        *_emitted(view),
        *_not_in_the_grams(view["spent"]),
        *_not_read(view["spent"]),
        *_saved(view),
        _bound(view),
        *_per_token(view["spent"]),
    ]


def state(view: View) -> str:
    """Say where the run stands: `finished (done)`, `live`."""
    why = f" ({view['finish_reason']})" if view["finish_reason"] else ""
    return f"{view['line']['state']}{why}"


def priced_g(spent: View) -> float | None:
    """Give a run's grams; None while none of its joules has a price, or in several signals."""
    if len(spent["carbon"]) != 1:
        return None
    grams: float | None = spent["carbon"][0]["carbon_g"]
    return grams


def why_no_grams(spent: View) -> str:
    """Say why there is no figure of grams; "" where there is one."""
    if len(spent["carbon"]) > 1:
        named = " and ".join(each["signal"] for each in spent["carbon"])
        return f"its grams are in several signals, which are never added: {named}"
    if spent["carbon"]:
        return ""
    if spent["energy_j"] is None:
        return spent["unread"] or "nothing of it was read"
    return "none of its joules has a price: is an accounting signal set, and is it answering?"


def not_read(spent: View, flags: Iterable[str]) -> str:
    """Say how much GPU time nobody read, and the most that was in it; "" for none."""
    if not spent["unobserved_s"]:
        return ""
    most = [formats.joules(spent["upper_j"], flags)]
    if spent["upper_g"] is not None:
        most.append(formats.grams(spent["upper_g"], flags))
    return (
        f"{quantities.duration(spent['unobserved_s'])} of GPU time were not read "
        f"(at most {', '.join(most)} more)"
    )


def _energy(view: View) -> Fact:
    spent = view["spent"]
    if spent["energy_j"] is None:
        return Fact(name="energy", figure=quantities.UNKNOWN, rests_on=spent["unread"])
    energy = formats.joules(spent["energy_j"], spent["flags"])
    return Fact(name="energy", figure=energy, rests_on=view["boundary"])


def _emitted(view: View) -> Iterator[Fact]:
    carbon = view["spent"]["carbon"]
    for each in carbon:
        grams = formats.grams(each["carbon_g"], each["flags"])
        signal = f"{signal_words(each['signal'])}, {each['signal']}"
        yield Fact(name="emitted", figure=grams, rests_on=signal)
    if len(carbon) > 1:
        yield Fact(name="", figure="never added", rests_on=why_no_grams(view["spent"]))
    if not carbon:
        why = why_no_grams(view["spent"])
        yield Fact(name="emitted", figure=quantities.UNKNOWN, rests_on=why)


def _not_in_the_grams(spent: View) -> Iterator[Fact]:
    if spent["unpriced_j"] and spent["carbon"]:
        joules = formats.joules(spent["unpriced_j"], spent["flags"])
        yield Fact(name="not in it", figure=joules, rests_on="these joules have no grams (yet)")


def _not_read(spent: View) -> Iterator[Fact]:
    said = not_read(spent, [*spent["flags"], "estimated"])
    if said:
        yield Fact(name="not read", figure=said, rests_on="in none of the figures above")


def _saved(view: View) -> Iterator[Fact]:
    spent = view["spent"]
    if not spent["baseline"]:
        observed = "it is only observed, so it has no submitted point to compare with"
        why = observed if view["observed"] else "it was submitted without a catalogue"
        yield Fact(name="saved", figure=quantities.UNKNOWN, rests_on=why)
        return
    flags = spent["flags"]
    low, high = spent["saved_g"], spent["saved_high_g"]
    against = f"against {spent['baseline']}, the point it was submitted at"
    if low is None:
        why = spent["unsettled"] or "not settled"
        yield Fact(name="saved", figure=quantities.UNKNOWN, rests_on=f"{against}: {why}")
        return
    figure = formats.grams(low, flags)
    if high is not None and high > low:
        figure = f"at least {figure} (up to {formats.grams(high, flags)})"
    baseline = formats.grams(spent["baseline_g"], flags)
    rests_on = f"{against}: {baseline} at as many tokens, {spent['signal']}"
    yield Fact(name="saved", figure=figure, rests_on=rests_on)
    if spent["carbon_aware_g"] is not None:
        better = formats.grams(spent["better_point_g"], flags)
        aware = formats.grams(spent["carbon_aware_g"], flags)
        parts = f"better single point ({spent['best_single']}) {better}, carbon-aware {aware}"
        yield Fact(name="of it", figure=parts)
    if spent["pue_note"]:
        yield Fact(name="", figure=spent["pue_note"])


def _bound(view: View) -> Fact:
    spent = view["spent"]
    if spent["bound_g"] is None:
        why = "told of a finished run whose saving is settled and whose intervals were all measured"
        return Fact(name="best possible", figure=quantities.UNKNOWN, rests_on=why)
    least = marked(quantities.grams(spent["bound_g"]), [*spent["flags"], "estimated"])
    why = "the least any schedule of its points could have emitted, by its catalogue"
    return Fact(name="best possible", figure=least, rests_on=f"{why}; {spent['signal']}")


def _per_token(spent: View) -> Iterator[Fact]:
    grams = priced_g(spent)
    if grams is None or spent["unpriced_j"] or not spent["tokens"]:
        return
    figure = formats.grams(grams / spent["tokens"] * 1e6, spent["flags"])
    yield Fact(name="per 10^6 tokens", figure=figure, rests_on=f"{spent['tokens']:,} tokens")
