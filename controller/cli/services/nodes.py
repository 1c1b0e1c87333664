"""`wattmesh nodes`: tokens of the nodes' agents, and nodes that are gone for good."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.client import DaemonConnection, segment
from wattmesh.controller.cli.output import print_done, print_json, print_lines
from wattmesh.errors import InputInvalid

app = typer.Typer(
    no_args_is_help=True, help="Manage the tokens of nodes, and retire nodes that are gone."
)
token = typer.Typer(
    no_args_is_help=True, help="Manage tokens: an agent needs its node's token to report."
)
app.add_typer(token, name="token")

Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node (agent.node).")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the token to a new file of mode 0600."),
]


@token.command()
def make(
    node: Node,
    out: Out = None,
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Make the token of a node that has none; it is shown only this once."""
    _told(_ask(socket, node, "token", out, {}), out, as_json)


@token.command()
def rotate(
    node: Node,
    keep_h: Annotated[
        float, typer.Option("--keep-hours", help="Hours that the old token stays valid.")
    ] = 24.0,
    out: Out = None,
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Make a new token for a node; the old one ends after `--keep-hours`."""
    _told(_ask(socket, node, "token/rotate", out, {"keep_h": keep_h}), out, as_json)


@token.command()
def revoke(
    node: Node, socket: options.Socket = options.SOCKET, as_json: options.AsJson = False
) -> None:
    """End all tokens of a node at once: its agent is refused until it has a new one."""
    print_done(
        DaemonConnection(socket).post(f"/v1/agents/{segment(node)}/token/revoke", {}), as_json
    )


@token.command("list")
def listed(socket: options.Socket = options.SOCKET, as_json: options.AsJson = False) -> None:
    """List the tokens of all nodes without their secrets, which are kept nowhere."""
    found = DaemonConnection(socket).get("/v1/tokens")
    if as_json:
        print_json(found)
        return
    for each in found["tokens"]:
        end = f", ends {each['ends_at']} ({each['ended_by']})" if each["ends_at"] else ""
        print_lines([f"{each['node']}  made {each['made_at']} by {each['made_by']}{end}"])
    if not found["tokens"]:
        print_lines(["No node has a token of its own; `wattmesh nodes token make NODE` makes one."])


@app.command()
def retire(
    node: Node, socket: options.Socket = options.SOCKET, as_json: options.AsJson = False
) -> None:
    """Expect no reports from a node until it reports again; its GPUs may move elsewhere."""
    print_done(DaemonConnection(socket).post(f"/v1/agents/{segment(node)}/retire", {}), as_json)


def _ask(
    socket: str, node: str, act: str, out: Path | None, body: dict[str, Any]
) -> dict[str, Any]:
    """Ask for a token, once the file for it is open.

    Raises:
        InputInvalid: the file exists already, or cannot be made.
    """
    if out is None:
        answer: dict[str, Any] = DaemonConnection(socket).post(
            f"/v1/agents/{segment(node)}/{act}", body
        )
        return answer
    try:
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InputInvalid(f"{out} cannot be made ({error.strerror}); name another file") from error
    try:
        answer = DaemonConnection(socket).post(f"/v1/agents/{segment(node)}/{act}", body)
        os.write(handle, f"{answer['token']}\n".encode())
        os.fsync(handle)
    except BaseException:
        out.unlink()
        raise
    finally:
        os.close(handle)
    return answer


def _told(answer: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Print only the token to standard output, for a pipe; the sentence goes to standard error."""
    if as_json:
        print_json(answer)
        return
    print(answer["done"], file=sys.stderr)
    print_lines([f"It is in {out}." if out else answer["token"]])
