"""The secret of a request, which is sent with it and never shown.

Invariant: the result of `hidden` contains the secret in none of the forms in which it is sent; no
`repr` shows it.
"""

import base64
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus

from wattmesh.errors import InputInvalid

MASK = "(secret)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Headers and query parameters with a secret, and its forms to hide.

    Attributes:
        headers, query: (name, value) pairs added to a request.
        secrets: every form in which a text could contain the secret.
    """

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def header(cls, name: str, key: str, *, scheme: str = "") -> "Credentials":
        """Send a key in a header: `auth-token: KEY`, or with a scheme `Authorization: Bearer KEY`.

        Raises:
            InputInvalid: the key is malformed; see `_checked`.
        """
        key = _checked(key)
        value = f"{scheme} {key}" if scheme else key
        return cls(headers=((name, value),), secrets=_forms(key))

    @classmethod
    def parameter(cls, name: str, key: str) -> "Credentials":
        """Send a key in the query, as EIA requires.

        Raises:
            InputInvalid: the key is malformed; see `_checked`.
        """
        key = _checked(key)
        return cls(query=((name, key),), secrets=_forms(key))

    @classmethod
    def basic(cls, user: str, password: str) -> "Credentials":
        """Send user and password (HTTP Basic, UTF-8).

        Raises:
            InputInvalid: one of them is empty, or the user has a colon, which Basic cannot encode.
        """
        if not user or ":" in user or not password:
            raise InputInvalid("carbon: a login needs a user without ':' and a password")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        return cls(
            headers=(("Authorization", f"Basic {token}"),),
            secrets=(*_forms(token), *_forms(password)),
        )

    def hidden(self, text: str) -> str:
        """Mask the secret in a text."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text


NONE = Credentials()
"""For providers without authentication."""


def _checked(key: str) -> str:
    """Strip the final line break of a key's file.

    Raises:
        InputInvalid: the key is empty or has illegal characters; the message does not show it.
    """
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputInvalid(
            f"carbon: a key of {len(key)} characters is empty or has spaces, line breaks or "
            "letters beyond ASCII; put the key alone into its file"
        )
    return key


def _forms(secret: str) -> tuple[str, ...]:
    """The secret as it is and as encoded in URLs, `repr` and JSON; longest first."""
    forms = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
    forms |= {repr(secret)[1:-1], secret.replace("/", "\\/")}
    return tuple(sorted(forms, key=len, reverse=True))
