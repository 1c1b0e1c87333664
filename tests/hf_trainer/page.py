"""The page's script, which tests read without importing transformers."""

from tests.docs.blocks import block, patched

PAGE, HEADING = "docs/trainers.md", "Hugging Face Trainer"


def script() -> str:
    """The page's script with its diff."""
    return patched(block(PAGE, HEADING), block(PAGE, HEADING, 2))
