"""What nobody measured, the layout of each run over time, and flags that exclude no other flag."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add tables and columns; split columns whose words held two facts."""
    _new_tables()
    _new_columns()
    _emissions()
    _rollups()
    _covered()
    with op.batch_alter_table("token_marks") as batch:
        batch.drop_column("speed")
    # Their slots are gone in part, and with them what their savings would be told from.
    why = "its slots were summed up by an earlier version, which kept no saving of it"
    op.execute(
        f'INSERT INTO closed_runs SELECT DISTINCT r.run, r.finished_at, \'{{"why": "{why}"}}\' '
        "FROM runs r JOIN rollups s ON s.run = r.run WHERE r.finished_at IS NOT NULL"
    )


def _new_tables() -> None:
    op.create_table(
        "coverage",
        sa.Column("gpu_uuid", sa.String(length=64), nullable=False),
        sa.Column("from_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("until_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("gpu_uuid", "from_at"),
    )
    op.create_table(
        "stays",
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("clock_mhz", sa.Integer(), nullable=True),
        sa.Column("switching", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run", "at"),
    )
    op.create_table(
        "closed_runs",
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=False),
        sa.Column("figures", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run"),
    )


def _new_columns() -> None:
    """Add columns; they are empty in rows of an older journal."""
    texts = (
        ("runs", "best_single", 64, ""),
        ("budget_plans", "signal", 200, ""),
    )
    for table, name, length, empty in texts:
        with op.batch_alter_table(table) as batch:
            column = sa.String(length=length)
            batch.add_column(sa.Column(name, column, nullable=False, server_default=empty))
        with op.batch_alter_table(table) as batch:
            batch.alter_column(name, server_default=None, existing_type=column)
    longer = (
        ("runs", "trouble", ""),
        ("runs", "speeds", ""),
        ("incarnations", "gpus", "[]"),
        ("incarnations", "released", "[]"),
    )
    for table, name, empty in longer:
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column(name, sa.Text(), nullable=False, server_default=empty))
        with op.batch_alter_table(table) as batch:
            batch.alter_column(name, server_default=None, existing_type=sa.Text())
    with op.batch_alter_table("energy") as batch:
        batch.alter_column(
            "quality", type_=sa.String(length=64), existing_type=sa.String(length=16)
        )
    dark = sa.text("unobserved_ms > 0")
    op.create_index(
        "energy_unobserved", "energy", ["slot_start"], sqlite_where=dark, postgresql_where=dark
    )


def _covered() -> None:
    """Take for read what was booked of each device up to its counter, and keep newest launches."""
    op.execute(
        "INSERT INTO coverage (gpu_uuid, from_at, until_at) SELECT c.gpu_uuid, COALESCE(("
        "SELECT MIN(e.slot_start) FROM energy e WHERE e.gpu_uuid = c.gpu_uuid), MAX(c.at)), "
        "MAX(c.at) FROM (SELECT gpu_uuid, at FROM counters UNION ALL SELECT gpu_uuid, at FROM "
        "node_counters) c GROUP BY c.gpu_uuid"
    )
    for table in ("counters", "node_counters"):
        with op.batch_alter_table(table) as batch:
            since = sa.Column("since_us", sa.BigInteger(), nullable=False, server_default="0")
            batch.add_column(since)
        with op.batch_alter_table(table) as batch:
            batch.alter_column("since_us", server_default=None, existing_type=sa.BigInteger())
        op.execute(
            f"UPDATE {table} SET since_us = (SELECT v.from_at FROM coverage v "
            f"WHERE v.gpu_uuid = {table}.gpu_uuid)"
        )
    op.execute(
        "UPDATE incarnations SET gpus = (SELECT r.gpus FROM runs r WHERE r.incarnation = "
        "incarnations.incarnation) WHERE incarnation IN (SELECT r.incarnation FROM runs r)"
    )


def _emissions() -> None:
    """Tell the quality of joules from that of their intensity."""
    with op.batch_alter_table("emissions") as batch:
        for name, length in (("stand_in", 200), ("energy_quality", 64)):
            text = sa.String(length=length)
            batch.add_column(sa.Column(name, text, nullable=False, server_default=""))
        batch.add_column(sa.Column("upper_mj", sa.BigInteger(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("upper_ug", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("emissions") as batch:
        for name, length in (("stand_in", 200), ("energy_quality", 64)):
            batch.alter_column(name, server_default=None, existing_type=sa.String(length=length))
        batch.alter_column("upper_mj", server_default=None, existing_type=sa.BigInteger())
    op.execute(
        "UPDATE emissions SET energy_quality = quality, quality = 'measured' "
        "WHERE quality = 'simulated'"
    )


def _rollups() -> None:
    """Sums are kept apart by what their rows are kept apart by."""
    op.rename_table("rollups", "rollups_before")
    texts = (
        ("scenario", 16),
        ("run", 64),
        ("line", 32),
        ("signal", 200),
        ("stand_in", 200),
        ("quality", 16),
        ("energy_quality", 64),
    )
    amounts = (
        "energy_mj",
        "unobserved_ms",
        "upper_mj",
        "upper_ug",
        "carbon_ug",
        "tokens",
        "first_carbon_ug",
    )
    op.create_table(
        "rollups",
        *(sa.Column(name, sa.String(length=length), nullable=False) for name, length in texts),
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in amounts),
        sa.PrimaryKeyConstraint(*(name for name, _ in texts), "day", name="rollups_pkey2"),
    )
    kept = "scenario, run, line, signal, day, energy_mj, unobserved_ms, upper_mj, carbon_ug, tokens"
    op.execute(
        f"INSERT INTO rollups ({kept}, first_carbon_ug, stand_in, upper_ug, quality, "
        f"energy_quality) SELECT {kept}, first_carbon_ug, '', 0, "
        "CASE quality WHEN 'simulated' THEN 'measured' ELSE quality END, "
        "CASE quality WHEN 'simulated' THEN 'simulated' ELSE '' END FROM rollups_before"
    )
    op.drop_table("rollups_before")
