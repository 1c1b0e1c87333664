"""Tells a run in a long step from a lost one."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the hook's protocol version, the time of its last step, and its share of pauses."""
    # The hooks of runs that are there already are of the protocol before heartbeats.
    op.add_column(
        "runs", sa.Column("protocol", sa.Integer(), nullable=False, server_default=sa.text("1"))
    )
    op.add_column("runs", sa.Column("progress_at", sa.BigInteger(), nullable=True))
    op.add_column(
        "runs", sa.Column("pause_share", sa.Float(), nullable=False, server_default=sa.text("0"))
    )
