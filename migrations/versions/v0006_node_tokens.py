"""Tokens of single nodes, and the devices and runs that belong to a node."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add tables and columns, empty; a device or run is bound at its next report."""
    op.create_table(
        "node_devices",
        sa.Column("gpu_uuid", sa.String(64), primary_key=True),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_node_devices_node", "node_devices", ["node"])
    op.create_table(
        "node_tokens",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("made_by", sa.String(255), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_by", sa.String(255), nullable=False),
    )
    op.create_index("ix_node_tokens_node", "node_tokens", ["node"])
    op.create_table(
        "run_nodes",
        sa.Column("run", sa.String(64), primary_key=True),
        sa.Column("node", sa.String(255), nullable=False),
    )
