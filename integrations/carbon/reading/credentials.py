"""What proves to a provider who asks; it travels with a request and is shown nowhere.

Invariant: no text that leaves `hidden` holds the secret, in none of the forms in which it is sent;
no `repr` shows it.
"""

import base64
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus

from wattmesh.errors import InputInvalid

MASK = "(secret)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Headers and query parameters that carry a secret, and the forms to hide.

    Attributes:
        headers, query: (name, value) pairs added to a request.
        secrets: every form in which the secret could come back in a text.
    """

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def header(cls, name: str, key: str, *, scheme: str = "") -> "Credentials":
        """Send a key in a header: `auth-token: KEY`, or with a scheme `Authorization: Bearer KEY`.

        Raises:
            InputInvalid: it is no key; see `_checked`.
        """
        key = _checked(key)
        value = f"{scheme} {key}" if scheme else key
        return cls(headers=((name, value),), secrets=_forms(key))

    @classmethod
    def parameter(cls, name: str, key: str) -> "Credentials":
        """Send a key in the query, as EIA wants it.

        Raises:
            InputInvalid: it is no key; see `_checked`.
        """
        key = _checked(key)
        return cls(query=((name, key),), secrets=_forms(key))

    @classmethod
    def basic(cls, user: str, password: str) -> "Credentials":
        """Send user and password (HTTP Basic, UTF-8).

        Raises:
            InputInvalid: one of them is empty, or the user has a colon, which Basic cannot carry.
        """
        if not user or ":" in user or not password:
            raise InputInvalid("carbon: a login needs a user without ':' and a password")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        return cls(
            headers=(("Authorization", f"Basic {token}"),),
            secrets=(*_forms(token), *_forms(password)),
        )

    def hidden(self, text: str) -> str:
        """Give a text with the secret masked."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text


NONE = Credentials()
"""For providers that do not ask who asks."""


def _checked(key: str) -> str:
    """Give a key without the line break that its file may end with.

    Raises:
        InputInvalid: it is empty, or has characters that no key has; it is not shown.
    """
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputInvalid(
            f"carbon: a key of {len(key)} characters is empty or has spaces, line breaks or "
            "letters beyond ASCII; put the key alone into its file"
        )
    return key


def _forms(secret: str) -> tuple[str, ...]:
    """Give a secret as it is, and as URLs, `repr` and JSON write it; longest first."""
    forms = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
    forms |= {repr(secret)[1:-1], secret.replace("/", "\\/")}
    return tuple(sorted(forms, key=len, reverse=True))
