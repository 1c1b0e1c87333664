"""An agent's process. What it does is in `parts`; what it shares with the daemon's, in `life`.

    python -m wattmesh.controller.agent --config FILE

kill -9 at any moment is safe, because what matters is in the outbox.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from wattmesh.controller.agent.parts import AgentParts
from wattmesh.controller.process.life import leave, live, serve
from wattmesh.controller.process.notify import Notifier
from wattmesh.controller.settings import read as reader

log = logging.getLogger("wattmesh")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one agent; give the exit status."""

    def begin(path: Path) -> int:
        parts = AgentParts(reader.load(path))
        return serve(
            parts.start,
            parts.stop,
            [lambda: parts.sampler.state.last_progress_s],
            sentence=lambda: parts.sentence,
            reload=_not_taken,
        )

    return live("wattmesh agent", "Run this node's agent in the foreground.", begin, arguments)


def _not_taken(notifier: Notifier) -> None:
    log.warning("an agent takes new settings when it is restarted, which loses nothing")


if __name__ == "__main__":
    leave(main())
