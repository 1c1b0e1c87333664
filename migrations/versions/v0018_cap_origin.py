"""Who set a power cap, and by what of which signal where demand response did."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the columns; every cap from before was an operator's, as are those of older daemons."""
    for name, length, default in (
        ("origin", 16, "'operator'"),
        ("signal", 200, "''"),
        ("unit", 16, "''"),
    ):
        column = sa.Column(name, sa.String(length), nullable=False, server_default=sa.text(default))
        op.add_column("power_caps", column)
    op.add_column("power_caps", sa.Column("value", sa.Float()))
    op.add_column("power_caps", sa.Column("threshold", sa.Float()))
    op.add_column("power_caps", sa.Column("issued_at", sa.BigInteger()))
    op.create_index("power_caps_by_end", "power_caps", ["until_at"])
