"""`wattmesh restore-all`: every GPU of this machine back to where it was before wattmesh."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import BAD, print_answer, trouble
from wattmesh.controller.cli.tables import Column, table
from wattmesh.telemetry.actuator import settings as settings_file
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.actuator.restore import restore_all as give_back

COLUMNS = (Column(title="GPU"), Column(title="WAS"), Column(title="IS"), Column(title="KEPT FOR"))


def restore_all(
    config: options.Config = options.DEFAULT_CONFIG,
    obligations: Annotated[
        bool,
        typer.Option("--obligations", help="Also lift operators' caps before they end."),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Restore nothing: let the running actuator obey again."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Undo wattmesh's clocks and caps on this machine, now, with or without an actuator.

    Needs root. It asks neither daemon nor agent. An operator's cap stays until it ends, unless
    `--obligations` is given. If an actuator runs, it does the work, and then obeys nobody until
    `--resume` or its next start.
    """
    settings = settings_file.load(Path(config))
    if resume:
        answer = ActuatorClient(settings.socket).resume()
        print_answer(
            answer.to_json(), lambda: [f"the actuator obeys again ({answer.mode})"], as_json
        )
        return
    gpus = give_back(settings, obligations=obligations)
    troubled = [each["trouble"] for each in gpus if each["trouble"]]
    print_answer(
        {"ok": not troubled, "gpus": gpus}, lambda: [*screen(gpus), *trouble(troubled)], as_json
    )
    if troubled:
        raise typer.Exit(1)


def screen(gpus: list[dict[str, Any]]) -> list[Text]:
    """Lay out what each GPU was and is."""
    if not gpus:
        return [Text("no GPU answers on this machine, and nothing of ours is on any")]
    return table(
        COLUMNS,
        [
            (
                each["gpu_uuid"],
                _restored_settings(each["was"]),
                Text(_now(each), style=BAD if each["trouble"] else ""),
                each["obligation"],
            )
            for each in gpus
        ],
    )


def _restored_settings(levers: Mapping[str, Any]) -> str:
    parts = []
    if levers["clock_mhz"] is not None:
        parts.append(f"locked to {levers['clock_mhz']} MHz")
    if levers["cap_w"] is not None:
        parts.append(f"capped at {levers['cap_w']:g} W (found {levers['found_w']:g} W)")
    return ", ".join(parts) or "nothing of ours"


def _now(gpu: Mapping[str, Any]) -> str:
    levers, limit = gpu["now"], gpu["now"]["limit_w"]
    lock = f"locked to {levers['clock_mhz']} MHz" if levers["clock_mhz"] else "no lock of ours"
    return f"{lock}, limit {f'{limit:g} W' if limit is not None else 'unknown'}"
