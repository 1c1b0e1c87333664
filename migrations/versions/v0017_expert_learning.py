"""What was learned of each run's expert costs, as it was after the newest count."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the table; what older daemons had learned was in their memory only."""
    op.create_table(
        "expert_learning",
        sa.Column("run", sa.String(64), primary_key=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
    )
