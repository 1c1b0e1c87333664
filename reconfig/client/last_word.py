"""Reports the end of a run whose launches could not report it, from the supervisor that saw it.

Invariant: the report names the launch that the daemon accepted last, and is sent only while no
launch holds the run folder.
"""

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig.launch.attempt import is_live
from wattmesh.reconfig.launch.folder import RunFolder, read_json
from wattmesh.reconfig.ranges import clean
from wattmesh.reconfig.wire.link import DaemonAnswer, DaemonLink
from wattmesh.reconfig.wire.messages import Finish

CALL_LIMIT_S = 3.0
LONGEST = 400
"""Longest reason, in characters."""


def tell_end(folder: RunFolder, reason: str) -> str:
    """Tell the daemon, if there is one, how a run ended; return why that failed, "" otherwise.

    If a launch has reported its own end, the daemon keeps that report.

    Args:
        folder: the run's folder.
        reason: "stopped: ..." or "failed: ...".
    """
    run = (read_json(folder.run_file) or {}).get("run")
    incarnation = (read_json(folder.registered_file) or {}).get("incarnation")
    try:
        link = DaemonLink.from_environment()
        if link is None or run is None or incarnation is None:
            return ""  # no daemon, or no launch that it accepted
        if is_live(folder):
            return "another launch of the run is live"
        known = link.call("GET", f"/v1/runs/{run}", None, CALL_LIMIT_S)
        line = known.body.get("run")
        if not known.accepted or not isinstance(line, dict):
            return _words(known)
        finish = Finish(
            run=str(run),
            incarnation=str(incarnation),
            attempt=int(line["attempt"]),
            step=int(line["step"]),
            tokens=int(line["tokens"]),
            reason=clean(reason)[:LONGEST],
            loss=line["loss"],
        )
        answer = link.call("POST", f"/v1/runs/{run}/finish", finish.to_json(), CALL_LIMIT_S)
        return "" if answer.accepted else _words(answer)
    except (SourceUnavailable, InputInvalid, KeyError, TypeError, ValueError) as error:
        return str(error) or repr(error)


def _words(answer: DaemonAnswer) -> str:
    return f"the daemon answered {answer.status}: {answer.body.get('error', '')}"
