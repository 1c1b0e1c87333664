"""How far the wall clock was stepped while that holds everything, beside for how long it does."""

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
