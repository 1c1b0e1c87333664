"""A supervisor around torchrun: launches a job on one host, and again when that helps.

    python -m wattmesh.integrations.torchrun --nproc 4 --checkpoint-dir DIR -- script.py args...

What it does when a launch ends is `reconfig/launcher/supervisor.py`'s; here is how torchrun starts
the ranks. SIGTERM asks the job to checkpoint at its next boundary and end.

Invariant: no process of a launch is left behind when the next one starts. This process never
imports torch.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from wattmesh.reconfig.launcher.supervisor import TOKEN_VARIABLE, Launch, Supervisor

END_GRACE_S = 5.0


def words_of(nproc: int, command: Sequence[str], *, python: str = sys.executable) -> list[str]:
    """Return the command line that runs `command` once, on `nproc` ranks of this host."""
    return [
        *(python, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(nproc), "--max-restarts", "0"),
        *command,
    ]


class Torchrun:
    """Launches through `torch.distributed.run --standalone`, in a session of its own."""

    def __init__(self, nproc: int, command: Sequence[str]) -> None:
        """Run `command` (a script with its arguments, or -m module ...) on `nproc` ranks."""
        self._arguments = words_of(nproc, command)

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start the agent, which starts the ranks."""
        process = subprocess.Popen(
            self._arguments, env={**os.environ, **environment}, start_new_session=True
        )
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise a job from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m wattmesh.integrations.torchrun",
        description="Launch a training script with torchrun, and again when it asks or fails.",
    )
    parser.add_argument("--nproc", type=int, required=True, help="ranks to start on this host")
    parser.add_argument("--checkpoint-dir", type=Path, required=True, help="as given to attach")
    parser.add_argument("--max-restarts", type=int, default=5, help="failures in a row")
    parser.add_argument("--stop-grace", type=float, default=600.0, help="seconds to stop in band")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- script.py args...")
    chosen = parser.parse_args(arguments)
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command:
        parser.error("name the training script after --")
    supervisor = Supervisor(
        Torchrun(chosen.nproc, command),
        chosen.checkpoint_dir,
        max_restarts=chosen.max_restarts,
        stop_grace_s=chosen.stop_grace,
        say=_say,
    )

    def heed(number: int, frame: FrameType | None) -> None:
        supervisor.ask_to_stop()

    signal.signal(signal.SIGTERM, heed)
    signal.signal(signal.SIGINT, heed)
    return supervisor.run()


def _say(sentence: str) -> None:
    print(f"wattmesh: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
