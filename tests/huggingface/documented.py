"""The script of docs/huggingface.md without us, and with the lines of its diff, on two ranks."""

import importlib
import os
from typing import Any

import torch

from tests.docs.blocks import block, patched

# What the page's script imports late, imported here once for all ranks.
importlib.import_module("transformers.models.auto.modeling_auto")
importlib.import_module("transformers.models.llama.modeling_llama")

PAGE, HEADING = "docs/huggingface.md", "A script"


def script() -> str:
    """The page's script with its diff."""
    return patched(block(PAGE, HEADING), block(PAGE, HEADING, 2))


def _run(text: str) -> int:
    torch.set_num_threads(1)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, PAGE, "exec"), names)
    return 0


def plain() -> int:
    """One rank of the script as it is without us."""
    return _run(block(PAGE, HEADING))


def attached() -> int:
    """One rank of the script with the lines."""
    return _run(script().replace("/shared/llama", os.environ["REAL"]))
