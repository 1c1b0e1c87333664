"""Forecasts of wind, sun, load and weather beside the grid signals, each with when it was known."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the table, empty: nothing was asked for yet."""
    op.create_table(
        "exogenous_points",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("series", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("start_at", sa.BigInteger(), nullable=False),
        sa.Column("milli", sa.BigInteger(), nullable=False),
        sa.Column("known_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("exogenous_points_by_start", "exogenous_points", ["series", "start_at"])
