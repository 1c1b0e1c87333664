"""The GPUs that the scheduler gave a run's job, whether its ranks use them or not."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the columns; launches from before named none, which means not known."""
    for table in ("runs", "incarnations"):
        column = sa.Column("allocated", sa.Text(), nullable=False, server_default=sa.text("'[]'"))
        op.add_column(table, column)
