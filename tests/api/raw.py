"""HTTP by hand, for clients that keep to no rule."""

import json
import socket
from typing import Any

from tests.builders import messages


def answer(client: socket.socket) -> tuple[int, Any]:
    """Read one answer to its end."""
    content = b""
    while True:
        piece = client.recv(65536)
        content += piece
        head, _, body = content.partition(b"\r\n\r\n")
        if not piece or (body and body.endswith((b"}", b"."))):
            return int(head.split()[1]), json.loads(body) if body.startswith(b"{") else body


def post(body: bytes, length: int | None = None) -> bytes:
    """Write a POST by hand."""
    target = f"/v1/runs/{messages.RUN}/progress"
    size = len(body) if length is None else length
    return f"POST {target} HTTP/1.1\r\nhost: w\r\ncontent-length: {size}\r\n\r\n".encode() + body
