"""The process that forks ranks, with transformers imported."""

import pytest

from tests.hook.harness import Zygote


@pytest.fixture(scope="session")
def ranks(zygote: Zygote) -> Zygote:
    """Forks ranks that need not import transformers, each for itself."""
    zygote.load("tests.huggingface.job")
    zygote.load("tests.huggingface.documented")
    return zygote
