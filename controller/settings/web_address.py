"""Check an `http(s)://host:port` address of the settings, before anything is asked there. Pure.

Invariant: an address without a mistake has a host, a port that TCP has, or none, and no blank.
"""

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from wattmesh.controller.settings.mistakes import Mistake, quoted

HIGHEST_PORT = 65_535


NO_USER = "holds a user or password, which does not belong into an address, as logs show it"


def without_user(url: str) -> str:
    """Give an address, whatever its mistakes, without what stands before an `@`."""
    before, at, after = url.rpartition("@")
    return f"{before.partition('//')[0]}//***@{after}" if at else url


def holds_user(url: str) -> bool:
    """Say whether a good address names a user or a password."""
    return "@" in urlsplit(url).netloc


def address_mistake(url: str, like: str) -> str:
    """Say what is wrong with an address; "" for a good one.

    Args:
        url: as written in the settings.
        like: an example of a good one, for the sentence.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # half of a bracketed address
        parts = urlsplit("")
    said = quoted(without_user(url))
    # `urlsplit` drops tabs and line ends, and takes a host with a blank or a backslash.
    bad = any(each.isspace() or each == "\\" or not each.isprintable() for each in url)
    if bad or not (parts.hostname and parts.scheme in {"http", "https"}):
        return f"{said} is not an address like {like}"
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return f"{said} is not an address: its port is no number from 1 to {HIGHEST_PORT}"
    return ""


def in_the_clear(key: str, url: str) -> Iterator[Mistake]:
    """Check that a secret is sent over TLS, or stays on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return  # named when it is opened
    if parts.scheme == "http" and not _loopback(host):
        yield (
            key,
            f"{quoted(url)} would carry the secret in the clear; write https:// (http:// is for "
            "this machine alone)",
        )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
