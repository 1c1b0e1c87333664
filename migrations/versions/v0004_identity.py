"""The journal's identity, which actuators fence on beside the epoch."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the table; the first leader under this version writes the identity."""
    op.create_table(
        "identity",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("journal", sa.String(36), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("came_from", sa.String(36), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id"),
    )
