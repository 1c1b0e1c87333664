"""The page's script, which tests read without importing Lightning."""

from tests.docs.blocks import block, patched

PAGE, HEADING = "docs/trainers.md", "Lightning"


def script() -> str:
    """The page's script with its diff."""
    return patched(block(PAGE, HEADING), block(PAGE, HEADING, 2))
