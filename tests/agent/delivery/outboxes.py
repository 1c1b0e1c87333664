"""Outboxes that tests open; the fixture `_closed`, imported by a test's module, closes them."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.agent.delivery.ledgers import T0
from wattmesh.controller.agent.outbox import AgentOutbox

OPEN: list[AgentOutbox] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    while OPEN:
        with suppress(OSError):  # closed already
            OPEN.pop().close()


def fresh(folder: Path, **changes: Any) -> AgentOutbox:
    """Open the outbox of a folder."""
    values: dict[str, Any] = {"node": "n1", "boot_id": "boot-1", "now": lambda: T0}
    OPEN.append(AgentOutbox(folder / "agent.db", **values | changes))
    return OPEN[-1]


def opened(folder: Path, **changes: Any) -> AgentOutbox:
    """Open the outbox of a folder, which knows what the controller has: nothing."""
    outbox = fresh(folder, **changes)
    outbox.adopt(())
    return outbox
