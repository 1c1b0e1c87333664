"""The id of a switch is called so: `plan` is what the planner makes."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Rename the column, where it has the old name; code from before reads and writes that one."""
    for table in ("switches", "transitions"):
        columns = sa.inspect(op.get_bind()).get_columns(table)
        if any(each["name"] == "plan" for each in columns):
            op.execute(f"ALTER TABLE {table} RENAME COLUMN plan TO switch_id")
    op.execute(f"UPDATE schema_floor SET oldest = '{revision}'")
