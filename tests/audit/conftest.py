"""A migrated journal of each kind."""

from tests.journal.conftest import journal

__all__ = ["journal"]
