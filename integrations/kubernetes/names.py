"""What Kubernetes takes as a name, an image, a path or an address. Pure.

The API server refuses a wrong name of the job itself, but takes a claim, an account or an image of
any spelling: then the pods wait for ever, and no message reaches whoever made the job. Invariant:
every text is checked for its length and its alphabet, and is refused with the option that gave it.
"""

import re

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.wire.link import unix_path

LONGEST_SUBDOMAIN = 253
LONGEST_IMAGE = 512
LONGEST_PATH = 1024

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
"""DNS-1123 subdomain: what objects of most kinds are called."""

_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"([a-zA-Z0-9]|[a-zA-Z0-9][-a-zA-Z0-9]*[a-zA-Z0-9])"
_IMAGE = re.compile(
    rf"({_HOST}(\.{_HOST})*(:[0-9]{{1,5}})?/)?{_PART}(/{_PART})*"
    r"(:[\w][\w.-]{0,127})?(@[a-zA-Z][\w+.-]*:[0-9a-fA-F]{32,128})?",
    re.ASCII,
)
"""The grammar of image references (distribution/reference)."""


def check_object(option: str, name: str) -> None:
    """Check the name of an object that the job names: a claim, an account, a runtime.

    Raises:
        InputInvalid: it is none.
    """
    if len(name) > LONGEST_SUBDOMAIN or not _SUBDOMAIN.fullmatch(name):
        raise InputInvalid(
            f"{option} {_shown(name)} is no name of Kubernetes: use at most {LONGEST_SUBDOMAIN} of "
            "a-z, 0-9, `-` and `.`; each part begins and ends with a letter or a digit."
        )


def check_image(option: str, image: str) -> None:
    """Check an image reference.

    Raises:
        InputInvalid: no registry has an image of that name.
    """
    if len(image) > LONGEST_IMAGE or not _IMAGE.fullmatch(image):
        raise InputInvalid(
            f"{option} {_shown(image)} names no image: write it as registry/name:tag, the name in "
            "a-z, 0-9 and `.`, `_`, `-` between them."
        )


def check_path(option: str, path: str, *, mounted: bool = False) -> None:
    """Check an absolute path in a container or on a node; `mounted`: a volume is mounted there.

    Raises:
        InputInvalid: it is not absolute, or Kubernetes refuses it.
    """
    odd = not path.isprintable() or ".." in path.split("/") or (mounted and ":" in path)
    if not path.startswith("/") or path.strip("/") == "" or odd or len(path) > LONGEST_PATH:
        raise InputInvalid(
            f"{option} {_shown(path)} is no path for a pod: it begins with `/`, is not `/` alone, "
            f"and has no `..`{', no `:`' if mounted else ''} and no control characters."
        )


def check_url(option: str, url: str) -> None:
    """Check where the pods find the daemon or the agent.

    Raises:
        InputInvalid: it is no address that `WATTMESH_URL` can have.
    """
    path = unix_path(url)
    if path is None:
        raise InputInvalid(f"{option} {_shown(url)} is no address: write unix:///PATH.")
    check_path(option, str(path))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
