"""`python -m wattmesh.integrations.carbon.grid_server`: carbon providers on this machine.

    python -m wattmesh.integrations.carbon.grid_server --listen 127.0.0.1:8099
    ... --fault watttime:token-expired --fault neso:gap --fault electricity_maps:rate-limited:3
    curl -X POST 127.0.0.1:8099/control/faults -d '{"fault": "hang", "provider": "neso"}'

Exit codes: 0 ended by a signal, 1 failed, 2 misuse.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.integrations.carbon.grid_server.answers import ServedProvider, moment
from wattmesh.integrations.carbon.grid_server.control import rule
from wattmesh.integrations.carbon.grid_server.faults import ActiveFault, Fault
from wattmesh.integrations.carbon.grid_server.grids import SimulatedGrid
from wattmesh.integrations.carbon.grid_server.server import GridServer, utc_now
from wattmesh.integrations.carbon.reading import trace


def fault(word: str) -> ActiveFault:
    """Read `provider:fault`, `provider:fault:times` or `fault`."""
    provider, _, rest = word.partition(":")
    if not rest:
        provider, rest = "", word
    name, _, times = rest.partition(":")
    words: dict[str, object] = {"fault": name, "provider": provider or None}
    try:
        return rule(words | ({"times": int(times)} if times else {}))
    except (InputInvalid, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{word!r}: {error}") from error


def address(word: str) -> tuple[str, int]:
    """Read `host:port`."""
    host, _, port = word.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{word!r} is not host:port, such as 127.0.0.1:8099")
    return host, int(port)


def start_of(word: str) -> datetime:
    """Read the time at which the server's clock begins."""
    try:
        return moment(word)
    except InputInvalid as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def settings_lines(server: GridServer) -> str:
    """Give the address of every provider, as `base_url` wants it."""
    return "\n".join(
        f'{service:<18} base_url = "{server.base(service)}"' for service in ServedProvider
    )


def _words() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(
        prog="python -m wattmesh.integrations.carbon.grid_server",
        description="Answer like the carbon providers, their faults too; all values are invented.",
        epilog="faults: " + ", ".join(Fault),
    )
    words.add_argument("--listen", type=address, default=("127.0.0.1", 8099), metavar="HOST:PORT")
    words.add_argument(
        "--fault",
        type=fault,
        action="append",
        default=[],
        metavar="[PROVIDER:]FAULT[:TIMES]",
        help="switch a fault on; may be given several times",
    )
    words.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a recorded series (CSV as wattmesh's replay reads it); its zone is told from it",
    )
    words.add_argument(
        "--clock", type=start_of, metavar="TIME", help="begin at this time and run from there"
    )
    words.add_argument(
        "--key", action="append", default=[], help="an API key that is known; none: every key is"
    )
    return words


def run(arguments: argparse.Namespace, ended: threading.Event) -> None:
    """Serve until `ended`.

    Raises:
        WattmeshError: a trace cannot be used.
        OSError: the address is in use.
    """
    shift = arguments.clock - utc_now() if arguments.clock else timedelta()
    grid = SimulatedGrid(traces=tuple(trace.load(path) for path in arguments.trace))
    server = GridServer(clock=lambda: utc_now() + shift, grid=grid, keys=frozenset(arguments.key))
    for each in arguments.fault:
        server.faults.add(each)
    host, port = arguments.listen
    with server.serving(host, port):
        print(settings_lines(server))
        print(f"zones: {', '.join(grid.zones)}")
        print(f"faults: POST {server.url}/control/faults", flush=True)
        ended.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM."""
    arguments = _words().parse_args(argv)
    ended = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda *_: ended.set()) for each in numbers}
    try:
        run(arguments, ended)
    except (WattmeshError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


if __name__ == "__main__":
    sys.exit(main())
