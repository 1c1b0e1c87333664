"""A dummy job: it registers through the agent's relay and reports as the hook does.

Training goes on whatever becomes of the services: each step is counted in a file of its own.
"""

import http.client
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Progress, Register

RELAY = "/run/wattmesh-agent/agent.sock"
RUN = "6d1c9d0e-0000-4000-8000-000000000001"
LAYOUT = Layout(dp_shard=2)
STEP_S = 0.2
TOKENS_TOTAL = 1_000_000_000


class _Relay(http.client.HTTPConnection):
    """HTTP over the relay's socket."""

    def connect(self) -> None:
        """Reach it."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(5.0)
        self.sock.connect(RELAY)


def post(call: str, body: Any) -> int:
    """Tell the daemon something; 0 when nobody answered."""
    connection = _Relay("relay")
    try:
        connection.request(
            "POST",
            f"/v1/runs/{RUN}/{call}",
            json.dumps(body),
            {"Content-Type": "application/json"},
        )
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def train(gpus: tuple[str, ...], counted: Path) -> None:
    """Go on without end."""
    begun = Register(
        run=RUN,
        name="llama-8b",
        incarnation="incarnation-1",
        attempt=1,
        layout=LAYOUT,
        ranks=(0, 1),
        world_size=2,
        gpus=gpus,
        tokens_total=TOKENS_TOTAL,
        boundary_every=10,
        capabilities=("in_place",),
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    registered, step = False, 0
    while True:
        step += 1
        if not registered:
            registered = post("register", begun.to_json()) == 200
        else:
            told = Progress(
                run=RUN,
                incarnation="incarnation-1",
                attempt=1,
                seq=step,
                step=step,
                samples=8 * step,
                tokens=200 * step,
                tokens_per_s=1000.0,
                loss=4.2,
                layout=LAYOUT,
                ranks=(0, 1),
                boundary_every=10,
            )
            post("progress", told.to_json())
        counted.write_text(f"{step}\n")
        time.sleep(STEP_S)


if __name__ == "__main__":
    train(tuple(sys.argv[2:]), Path(sys.argv[1]))
