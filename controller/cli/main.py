"""From the words typed to an exit code: 0 done, 1 failed, 2 misuse.

Invariant: a failure is one clear sentence on standard error; a traceback is shown only with
`--debug`. Nothing heavy is imported here, because `wattmesh daemon` starts through this module.
"""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import TextIOWrapper
from types import FrameType

from wattmesh.errors import RetryLater, WattmeshError
from wattmesh.reconfig.ranges import clean_lines

EXECUTED = {
    "daemon": "wattmesh.controller.daemon",
    "agent": "wattmesh.controller.agent",
    "actuator": "wattmesh.telemetry.actuator",
}
"""Commands that are services, and the module of each one's process."""

UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Why standard output takes no more."""

INTERRUPTED = 130
"""Exit status that a shell expects after Ctrl-C (128 + SIGINT)."""

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Sent by schedulers, service managers, and a terminal that is closed."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; `words` defaults to what was typed."""
    _write_whatever_comes()
    given = list(sys.argv[1:] if words is None else words)
    # Words after `--` belong to another program.
    ours = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:ours]
    given = [word for word in given[:ours] if word != "--debug"] + given[ours:]
    if given[:2] == ["agent", "retire"]:
        given[0] = "nodes"  # handled by the command tree, not by the agent's process
    module = EXECUTED.get(given[0]) if given else None
    if module is not None and not {"-h", "--help"} & set(given):
        if find_spec("pydantic") is None:
            return _failed(_what_to_install("pydantic"), debug=debug)
        # exec starts a process without the command line's imports, and keeps the pid, which the
        # service manager watches.
        more = ["--debug"] if debug else []
        command = [sys.executable, "-m", module, *given[1:], *more]
        os.execv(sys.executable, command)
    try:
        with _ended_in_order():
            return _read(given)
    except WattmeshError as error:
        return _failed(str(error), debug=debug)
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and not _ours(error.name):
            return _failed(_what_to_install(str(error.name)), debug=debug)
        return _failed(
            f"a bug in wattmesh: {type(error).__name__}: {error}; run it again with --debug and "
            "report what it prints",
            debug=debug,
        )


def _write_whatever_comes() -> None:
    """Make sure that no sign of a screen, and no closed stream, ends a command.

    A serial console or an old locale has no `·`: `?` stands there then.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let a command that is told to end remove its processes and folders, as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        for each in ENDING:  # a second one does not disturb the clearing up
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    # One that is ignored stays so, as under nohup.
    before = {each: signal.getsignal(each) for each in ENDING}
    taken = [each for each, found in before.items() if found is signal.SIG_DFL]
    for each in taken:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, before[each])


def _read(words: Sequence[str]) -> int:
    """Run the words; end silently when standard output has no reader any more (`| head`)."""
    try:
        status = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
        return 1
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITTEN:
            raise
        _drop_the_rest()
        raise RetryLater(
            f"what it has to say cannot be written ({error.strerror}): make room, or name another "
            "place for its output"
        ) from error
    return status


def _drop_the_rest() -> None:
    """Keep Python from flushing the rest of the buffer at exit, which would print an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: Sequence[str]) -> int:
    """Run the words: plain `status` directly, everything else by the command tree."""
    # Imported here, so that neither the daemon's start nor `status` pays for it.
    if words[:1] == ["status"]:
        from wattmesh.controller.cli.runs import quick  # noqa: PLC0415

        asked = quick.read(words[1:])
        if asked is not None:
            quick.report(asked)
            return 0
    from wattmesh.controller.cli.tree import build, completing  # noqa: PLC0415

    try:
        build(completing(words))(args=list(words), prog_name="wattmesh")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _ours(module: str | None) -> bool:
    """Say whether a missing module is wattmesh's own: then it is a bug, or half a copy."""
    return module is None or module.partition(".")[0] == "wattmesh"


def _what_to_install(module: str) -> str:
    if module.partition(".")[0] == "torch":
        return "this command needs torch, which wattmesh leaves to you: `pip install torch`"
    return (
        f"`pip install wattmesh` alone is what a training job needs; for commands install "
        f"`pip install 'wattmesh[daemon]'` (there is no module {module})"
    )


def _failed(sentence: str, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"wattmesh: {clean_lines(sentence)}", file=sys.stderr)
    return 1


def _interrupted() -> int:
    print("wattmesh: stopped by Ctrl-C", file=sys.stderr)
    return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
