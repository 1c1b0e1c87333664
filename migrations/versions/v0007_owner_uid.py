"""Uids of up to 2^32 - 2 as owners of runs; until here, those from 2^31 on were kept 2^32 lower."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Widen the column, and correct the rows."""
    with op.batch_alter_table("runs") as runs:
        runs.alter_column(
            "owner_uid",
            existing_type=sa.Integer(),
            type_=sa.BigInteger(),
            existing_nullable=False,
        )
    op.execute("UPDATE runs SET owner_uid = owner_uid + 4294967296 WHERE owner_uid < 0")
