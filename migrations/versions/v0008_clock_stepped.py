"""How far the wall clock was stepped, while a step holds all actions."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column; what holds now was stepped by nobody knows how much."""
    op.add_column(
        "clock_marks",
        sa.Column("stepped_us", sa.BigInteger(), nullable=False, server_default="0"),
    )
