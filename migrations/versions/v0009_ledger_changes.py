"""Which days of the ledger were written, so that sums kept of old days are dropped."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the table, empty: no process has kept a sum yet."""
    op.create_table(
        "ledger_changes",
        sa.Column("day", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("changes", sa.BigInteger(), nullable=False),
    )
