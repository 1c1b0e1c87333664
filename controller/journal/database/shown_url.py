"""A database's address without its secrets, for sentences, logs and screens. Pure.

Invariant: the address may have mistakes of every kind: what could be a password is never shown.
"""

import re
from urllib.parse import unquote

HIDDEN = "***"

_SECRET = re.compile(r"pass(word|wd|phrase)?$|secret|token", re.IGNORECASE)
"""Names of options whose values are secrets: libpq's `password`, `sslpassword`, and their like."""


def without_secrets(url: str) -> str:
    """Give the address with `***` in the place of each password."""
    address, mark, query = url.partition("?")
    scheme, separator, rest = address.partition("://")
    user, at, host = rest.rpartition("@")
    if at and ":" in unquote(user):
        user = f"{re.split(':|%3a', user, flags=re.IGNORECASE)[0]}:{HIDDEN}"
    options = [_option(each) for each in query.split("&")] if query else []
    return f"{scheme}{separator}{user}{at}{host}{mark}{'&'.join(options)}"


def secret_options(url: str) -> tuple[str, ...]:
    """Name the options of an address that hold secrets."""
    names = (each.partition("=")[0] for each in url.partition("?")[2].split("&"))
    return tuple(unquote(each) for each in names if _SECRET.search(unquote(each)))


def _option(text: str) -> str:
    name, equals, _ = text.partition("=")
    return f"{name}{equals}{HIDDEN}" if _SECRET.search(unquote(name)) else text
