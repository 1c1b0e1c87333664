"""A supervisor of paper ranks that kills itself before or after one step, once.

    DIES=before:book:2 DIED=FILE python -m tests.hosts.dying --nproc 1 --hosts 2 ...

A step is named by what is done: `book`, the launch book is changed; `meeting`, the leader writes
where it is and what it starts; `answer`, the job is told that its next launch is held; `send`,
another host is told to start ranks; `share`, ranks are started here. It is counted by process.
Without DIES it lives.
"""

import functools
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wattmesh.integrations import torchrun
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launcher.hosts import follower, followers, meeting
from wattmesh.reconfig.launcher.hosts.followers import HostLink
from wattmesh.reconfig.launcher.launch_book import LaunchBook
from wattmesh.reconfig.launcher.torch_agent import HostShare, Torchrun

AGENT = """
n={nproc} h={host} pids=
export WORLD_SIZE={world} MASTER_ADDR={address} MASTER_PORT={port}
i=0; while [ $i -lt $n ]; do
    RANK=$((h * n + i)) {command} & pids="$pids $!"
    i=$((i + 1))
done
status=0; for pid in $pids; do wait $pid || status=1; done
exit $status
"""


def paper_words(
    nproc: int, command: Sequence[str], *, python: str = sys.executable, share: HostShare
) -> list[str]:
    """Start ranks as torchrun's agent does, without its import of torch."""
    filled = AGENT.format(
        nproc=nproc,
        host=share.host,
        world=share.hosts * nproc,
        address=share.address,
        port=share.port,
        command=shlex.join([python, *command]),
    )
    return ["sh", "-c", filled]


class Death:
    """Counts steps, and dies at one."""

    def __init__(self, dies: str, died: str) -> None:
        """Die at a step, unless somebody has already."""
        self.at, self.died, self.counts = dies, Path(died), Counter[str]()

    def step(self, name: str, inner: Callable[..., Any], counts: bool = True) -> Any:
        """Wrap what is a step of a name."""

        @functools.wraps(inner)
        def wrapped(*words: Any, **named: Any) -> Any:
            if name == "send" and words[1].get("do") != "launch":
                return inner(*words, **named)
            self.counts[name] += 1
            step = f"{name}:{self.counts[name]}"
            self.arrive(f"before:{step}")
            answer = inner(*words, **named)
            self.arrive(f"after:{step}")
            return answer

        return wrapped

    def arrive(self, where: str) -> None:
        """Die here, if this is the place."""
        if where == self.at and not self.died.exists():
            self.died.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


def arm() -> None:
    """Prepare to die, and start paper ranks."""
    setattr(torchrun, "Torchrun", functools.partial(Torchrun, words=paper_words))  # noqa: B010
    silence_s = float(os.environ.get("SILENCE_S", followers.SILENCE_S))
    for module in (follower, followers):
        setattr(module, "SILENCE_S", silence_s)  # noqa: B010 - of a module, unknown to mypy
        setattr(module, "PING_S", min(followers.PING_S, silence_s / 10))  # noqa: B010
    death = Death(os.environ.get("DIES", ""), os.environ.get("DIED", "/dev/null"))
    steps: list[tuple[Any, str, str]] = [
        (LaunchBook, "change", "book"),
        (meeting, "write", "meeting"),
        (asleep, "write", "answer"),
        (HostLink, "send", "send"),
        (Torchrun, "launch_share", "share"),
    ]
    for owner, attribute, name in steps:
        setattr(owner, attribute, death.step(name, getattr(owner, attribute)))


if __name__ == "__main__":
    arm()
    sys.exit(torchrun.main())
