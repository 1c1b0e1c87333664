"""Which revisions of the code still work with the schema, so that two versions may run at once."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the table; from this revision on the code knows what it says.

    A later migration that only adds leaves the row as it is. One that takes something away, or asks
    for something that older code does not write, sets `oldest` to its own revision.
    """
    floor = op.create_table(
        "schema_floor",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("oldest", sa.String(32), nullable=False),
    )
    op.bulk_insert(floor, [{"id": 1, "oldest": revision}])
