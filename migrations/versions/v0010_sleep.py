"""Runs that sleep: since when, until when, what holds their next launch, and whose GPUs idle."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the columns, empty: no run has slept yet."""
    op.add_column("runs", sa.Column("asleep_at", sa.BigInteger(), nullable=True))
    op.add_column("runs", sa.Column("wakes_at", sa.BigInteger(), nullable=True))
    op.add_column(
        "runs", sa.Column("held_as", sa.String(255), nullable=False, server_default=sa.text("''"))
    )
    op.add_column(
        "incarnations",
        sa.Column("asleep_release", sa.String(16), nullable=False, server_default=sa.text("''")),
    )
