"""The id of a switch is called so: `plan` is what the planner makes."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Rename the column; code from before reads and writes the old name."""
    for table in ("switches", "transitions"):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN plan TO switch_id")
    op.execute(f"UPDATE schema_floor SET oldest = '{revision}'")
