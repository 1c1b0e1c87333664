"""The command that runs the actuator: `python -m wattmesh.telemetry.actuator --config FILE`.

Exit codes: 0 stopped, 1 failed, 2 settings that must be corrected.
"""

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from wattmesh.errors import FixInput, WattmeshError
from wattmesh.telemetry.actuator import settings as settings_file
from wattmesh.telemetry.actuator.device import NvmlGpus
from wattmesh.telemetry.actuator.engine import Engine
from wattmesh.telemetry.actuator.journal import ActuatorJournal
from wattmesh.telemetry.actuator.obeying import hand_over
from wattmesh.telemetry.actuator.restore import restore_all
from wattmesh.telemetry.actuator.server import Server
from wattmesh.telemetry.actuator.settings import ActuatorSettings

log = logging.getLogger(__name__)


def main(words: Sequence[str] | None = None) -> int:
    """Run the actuator; with `--restore` or `--obey` do only that, and return the exit code."""
    asked = _parser().parse_args(words)
    logging.basicConfig(
        level=logging.DEBUG if asked.debug else logging.INFO,
        format="%(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        settings = settings_file.load(asked.config)
        if asked.obey is not None:
            print(hand_over(settings, asked.obey))
            return 0
        if asked.restore:
            return _give_back(settings)
        _live(settings, restore_at_stop=asked.restore_at_stop)
    except WattmeshError as error:
        print(f"wattmesh: {error}", file=sys.stderr)
        return 2 if isinstance(error, FixInput) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wattmesh actuator", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--obey",
        metavar="JOURNAL:EPOCH",
        help="make this node obey another journal, then exit (root; `wattmesh status` names it)",
    )
    parser.add_argument(
        "--restore", action="store_true", help="restore every GPU, then exit (for ExecStopPost)"
    )
    parser.add_argument(
        "--restore-at-stop",
        action="store_true",
        help="restore every GPU at SIGTERM, where no ExecStopPost does it",
    )
    parser.add_argument("--debug", action="store_true")
    return parser


def _give_back(settings: ActuatorSettings) -> int:
    """Restore every GPU, except where an obligation holds; return the exit code."""
    troubled = [each["trouble"] for each in restore_all(settings) if each["trouble"]]
    for each in troubled:
        print(f"wattmesh: {each}", file=sys.stderr)
    return 1 if troubled else 0


def _live(settings: ActuatorSettings, *, restore_at_stop: bool) -> None:
    """Restore what an earlier process left behind, then serve until SIGTERM or SIGINT."""
    with (
        closing(ActuatorJournal.open(settings.journal)) as journal,
        closing(NvmlGpus(settings.library)) as device,
    ):
        engine = Engine(journal=journal, device=device, settings=settings)
        for each in engine.start():
            if each.before != each.after:
                log.info("%s: restored: an earlier actuator had left it changed", each.gpu_uuid)
        with closing(Server(engine, settings.socket, settings.group, settings.agent)) as server:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: server.stop())
            server.serve(lambda: _ready(settings), lambda: _notify(b"WATCHDOG=1"))
        if restore_at_stop:
            engine.restore()


def _ready(settings: ActuatorSettings) -> None:
    log.info("the actuator listens on %s, mode %s", settings.socket, settings.mode)
    _notify(b"READY=1")


def _notify(text: bytes) -> None:
    """Send a state to the service manager, if one started us (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
            channel.connect(name)
            channel.sendall(text)
    except OSError as error:
        log.debug("the service manager did not receive %r: %s", text, error)


if __name__ == "__main__":
    sys.exit(main())
