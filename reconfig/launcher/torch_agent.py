"""Starts the ranks of one host through torchrun's agent, alone or as one of several hosts.

Invariant: no process of a launch is left behind on this host when the next one starts. This process
never imports torch.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wattmesh.reconfig.launcher.supervisor import TOKEN_VARIABLE, Launch

END_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """What one of several hosts has of a launch.

    Attributes:
        host: which host this is, from 0 on; ranks are numbered host by host.
        hosts: how many have ranks in this launch. `ranks`: how many ranks each of them starts.
        address, port: of the launch's store, on host 0.
    """

    host: int
    hosts: int
    ranks: int
    address: str
    port: int


def words_of(
    nproc: int,
    command: Sequence[str],
    *,
    python: str = sys.executable,
    share: HostShare | None = None,
) -> list[str]:
    """Return the command line that runs `command` once, on `nproc` ranks of this host.

    `share`: its place among several hosts; None: it is the only one.
    """
    where = ["--standalone"]
    if share is not None:
        where = [f"--nnodes={share.hosts}", f"--node-rank={share.host}"]
        where += [f"--master-addr={share.address}", f"--master-port={share.port}"]
    return [
        *(python, "-m", "torch.distributed.run", *where),
        *("--nproc-per-node", str(nproc), "--max-restarts", "0"),
        *command,
    ]


class Torchrun:
    """Launches through `torch.distributed.run`, in a session of its own."""

    def __init__(
        self,
        nproc: int,
        command: Sequence[str],
        words: Callable[..., Sequence[str]] = words_of,
    ) -> None:
        """Run `command` (a script with its arguments, or -m module ...) on `nproc` ranks.

        `words`: makes the command line of the agent, as `words_of` does.
        """
        self._nproc, self._command, self._words = nproc, list(command), words

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start the agent of the only host, which starts the ranks."""
        return self._start(self._words(self._nproc, self._command), {**os.environ, **environment})

    def launch_share(self, share: HostShare, environment: Mapping[str, str]) -> Launch:
        """Start the agent of one host among several."""
        # What a scheduler's operator says to torchrun (PET_...) is about its own launches.
        own = {name: text for name, text in os.environ.items() if not name.startswith("PET_")}
        words = self._words(share.ranks, self._command, share=share)
        return self._start(words, {**own, **environment})

    def _start(self, words: Sequence[str], environment: Mapping[str, str]) -> Launch:
        process = subprocess.Popen(words, env=environment, start_new_session=True)
        return _Agent(process, environment[TOKEN_VARIABLE])


class _Agent:
    """A torchrun agent and the ranks it started (each in a session of its own)."""

    def __init__(self, process: subprocess.Popen[bytes], token: str) -> None:
        """Watch `process`; its ranks are recognized by `token` in their environment."""
        self._process = process
        self._token = token

    def poll(self) -> int | None:
        """Return the agent's exit status, after killing ranks that it left; None while it runs."""
        status = self._process.poll()
        if status is not None:
            end_all_with(self._token)
        return status

    def end(self) -> None:
        """Send SIGTERM to the agent; after `END_GRACE_S`, SIGKILL to whatever is left."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_GRACE_S)
        end_all_with(self._token)
        self._process.wait()


def end_all_with(token: str) -> int:
    """Kill (SIGKILL) every process with `token` in its environment; return how many."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    ended = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            mine = wanted in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mine:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(folder.name), signal.SIGKILL)
                ended += 1
    return ended
