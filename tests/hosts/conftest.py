"""Two hosts for each module of this folder."""

from collections.abc import Iterator

import pytest

from tests.hosts.namespaces import TwoHosts, two_hosts


@pytest.fixture(scope="module")
def two() -> Iterator[TwoHosts]:
    """Hosts 0 and 1; where they cannot be made the tests fail, they are not skipped."""
    with two_hosts() as made:
        yield made
