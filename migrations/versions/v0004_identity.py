"""Which journal this is: what actuators fence on, beside the epoch."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make room for it; who leads first under this version gives the journal its identity."""
    op.create_table(
        "identity",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("journal", sa.String(36), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("came_from", sa.String(36), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id"),
    )
