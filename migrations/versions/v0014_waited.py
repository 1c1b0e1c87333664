"""How long each launch waited for its nodes, by its own word: it may register long after."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the column; of launches from before it is not known."""
    op.add_column("incarnations", sa.Column("waited_us", sa.BigInteger()))
