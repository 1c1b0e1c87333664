"""`wattmesh powercap`: cap what all GPUs may draw, now or later; see how it is kept; end it."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from wattmesh.controller.cli import options
from wattmesh.controller.cli.client import DaemonConnection
from wattmesh.controller.cli.output import DIM, legend, print_answer, print_done, styled, trouble
from wattmesh.controller.zoned_time import zoned_time
from wattmesh.errors import InputInvalid

ACTIONS = ("show", "end", "withdraw")
UNITS_W = {"w": 1.0, "kw": 1e3, "mw": 1e6}
UNITS_S = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def powercap(
    what: Annotated[
        str,
        typer.Argument(
            metavar="POWER|show|end|withdraw",
            help="A power (150kW, 1.2MW, 900W), or an action.",
        ),
    ] = "show",
    *,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="When an announced cap begins; default: now."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="When the cap ends, e.g. 2026-12-01T18:00Z."),
    ] = None,
    lasts: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="How long the cap lasts, e.g. 2h or 90min."),
    ] = None,
    triggered: Annotated[
        bool,
        typer.Option("--triggered", help="end, withdraw: only what demand response triggered."),
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; the journal keeps the text.")
    ] = "by hand",
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Cap the power of all GPUs together until a time, from now or announced; `show` caps.

    `end` ends the caps in force, `withdraw` takes back those announced. What demand response had
    triggered does not come back for the same hours.
    """
    if what in ACTIONS and (begin or until or lasts):
        raise InputInvalid(f"`powercap {what}` takes no times; give them with a power, as 150kW")
    if triggered and what not in ("end", "withdraw"):
        raise InputInvalid("--triggered is for `powercap end` and `powercap withdraw`")
    daemon = DaemonConnection(socket)
    if what == "show":
        answer = daemon.get("/v1/powercap")
        print_answer(answer, lambda: screen(answer), as_json)
        return
    if what in ACTIONS:
        only = {"triggered": True} if triggered else {}
        done = daemon.post(f"/v1/powercap/{what}", only)
    else:
        body: dict[str, Any] = {"cap_w": watts(what), "reason": reason}
        start = None if begin is None else time(begin, "--from")
        body["until"] = ends(until, lasts, start or datetime.now(UTC)).isoformat()
        done = daemon.post("/v1/powercap", body | ({"from": start.isoformat()} if start else {}))
    print_done(done, as_json)


def watts(text: str) -> float:
    """Read a power.

    Raises:
        InputInvalid: it is not a number with W, kW or MW; the unit is required.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmM]?[wW])\s*", text)
    if found is None:
        raise InputInvalid(
            f"{text!r} is neither a power nor show, end or withdraw; write 150kW, 1.2MW or 900W"
        )
    if found[2][0] == "m":
        raise InputInvalid(f"{text!r} may mean milliwatts; write MW for megawatts")
    return float(found[1]) * UNITS_W[found[2].lower()]


def ends(until: str | None, lasts: str | None, start: datetime) -> datetime:
    """Read when a cap that begins at `start` ends: at a time, or after a while; one of the two.

    Raises:
        InputInvalid: neither or both are given, or one is not understood.
    """
    if (until is None) == (lasts is None):
        raise InputInvalid("a cap ends by itself: give either --until TIME or --for 2h")
    if lasts is not None:
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d)\s*", lasts)
        if found is None:
            raise InputInvalid(f"--for {lasts!r} is no duration; write 90min, 2h or 1d")
        try:
            return start + timedelta(seconds=float(found[1]) * UNITS_S[found[2]])
        except OverflowError as error:
            raise InputInvalid(f"--for {lasts!r} ends after the year 9999") from error
    return time(until or "", "--until")


def time(text: str, option: str) -> datetime:
    """Read a time with its zone.

    Raises:
        InputInvalid: it is none.
    """
    found = zoned_time(text)
    if found is None:
        raise InputInvalid(f"{option} {text!r} is no time with its zone; write 2026-12-01T18:00Z")
    return found


def screen(answer: Mapping[str, Any]) -> list[Text | str]:
    """Lay out the answer of `GET /v1/powercap`."""
    cap, lines = answer["cap"], list[Text | str](trouble(answer.get("trouble", ())))
    ahead = _listed(answer.get("beside", ()), "ordered")
    ahead += _listed(answer.get("announced", ()), "announced")
    told = answer.get("demand_response", ())
    lines += trouble([each["sentence"] for each in told if each["held"]])
    ahead += [styled((each["sentence"], DIM)) for each in told if not each["held"]]
    if cap is None:
        return [*lines, "No power cap is in force.", *ahead]
    if not cap["meets"]:
        lines += trouble([cap["sentence"]])
    if cap["meets"]:
        lines.append(cap["sentence"])
    lines.append(styled((_who(cap, "ordered"), DIM)))
    for run, point in cap["slowed"].items():
        late = " and will miss its deadline" if run in cap["late"] else ""
        lines.append(f"{run} gave up {point} for it{late}")
    lines += ahead
    return [*lines, *legend(lines)]


def _listed(caps: Sequence[Mapping[str, Any]], done: str) -> list[Text | str]:
    """Lay out caps beside the one in force, each with who set it and why."""
    return [line for cap in caps for line in (cap["sentence"], styled((_who(cap, done), DIM)))]


def _who(cap: Mapping[str, Any], done: str) -> str:
    """Say who set a cap and why; of a triggered one its reason names value, threshold, signal."""
    if cap.get("trigger") is None:
        return f"{done} by {cap['by']}: {cap['reason']}"
    return f"triggered by {cap['reason']}"
