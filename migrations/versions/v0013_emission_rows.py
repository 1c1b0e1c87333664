"""Rows of grams name their run, device and price by a number: a third of the bytes.

The table `emissions` becomes `emission_rows`, and a view of the old name shows what it showed. On
SQLite, two tables whose key is most of the row are stored by it, without another copy of the key.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

PRICE = ("signal", "stand_in", "quality", "energy_quality", "pue_milli", "model")
AMOUNTS = (
    *("slot_end", "energy_mj", "g_milli_per_kwh", "carbon_ug", "first_carbon_ug"),
    *("upper_mj", "upper_ug", "tokens"),
)


def upgrade() -> None:
    """Move all rows, and check that the view shows as many."""
    _tables()
    op.execute(
        "INSERT INTO ledger_names (name) SELECT run FROM emissions UNION SELECT gpu_uuid "
        "FROM emissions ORDER BY 1"
    )
    price = ", ".join(PRICE)
    op.execute(f"INSERT INTO emission_prices ({price}) SELECT DISTINCT {price} FROM emissions")
    same = " AND ".join(f"prices.{name} = old.{name}" for name in PRICE)
    op.execute(
        "INSERT INTO emission_rows (run_id, scenario, gpu_id, slot_start, line, price_id, "
        f"{', '.join(AMOUNTS)}) SELECT runs.id, old.scenario, gpus.id, old.slot_start, old.line, "
        f"prices.id, {', '.join(f'old.{name}' for name in AMOUNTS)} FROM emissions AS old "
        "JOIN ledger_names AS runs ON runs.name = old.run "
        "JOIN ledger_names AS gpus ON gpus.name = old.gpu_uuid "
        f"JOIN emission_prices AS prices ON {same}"
    )
    bind = op.get_bind()
    before = bind.execute(sa.text("SELECT count(*) FROM emissions")).scalar_one()
    after = bind.execute(sa.text("SELECT count(*) FROM emission_rows")).scalar_one()
    if before != after:
        raise RuntimeError(f"of {before} rows of emissions {after} could be moved; none was")
    op.drop_table("emissions")
    op.execute(
        "CREATE VIEW emissions AS SELECT mine.scenario, runs.name AS run, gpus.name AS gpu_uuid, "
        "mine.slot_start, mine.line, prices.signal, prices.stand_in, prices.quality, "
        f"prices.energy_quality, prices.pue_milli, prices.model, "
        f"{', '.join(f'mine.{name}' for name in AMOUNTS)} FROM emission_rows AS mine "
        "LEFT JOIN ledger_names AS runs ON runs.id = mine.run_id "
        "LEFT JOIN ledger_names AS gpus ON gpus.id = mine.gpu_id "
        "LEFT JOIN emission_prices AS prices ON prices.id = mine.price_id"
    )
    if bind.dialect.name == "sqlite":
        for name in ("rollups", "token_marks"):
            _by_key(name)
    # Code from before writes the table that is gone.
    op.execute(f"UPDATE schema_floor SET oldest = '{revision}'")


def _by_key(name: str) -> None:
    """Store a table of SQLite by its primary key; it has no other index."""
    bind = op.get_bind()
    made = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name")
    statement = bind.execute(made, {"name": name}).scalar_one()
    if statement.endswith("WITHOUT ROWID"):
        return
    op.execute(f"ALTER TABLE {name} RENAME TO {name}_before")
    bind.exec_driver_sql(f"{statement} WITHOUT ROWID")
    op.execute(f"INSERT INTO {name} SELECT * FROM {name}_before")
    op.execute(f"DROP TABLE {name}_before")


def _tables() -> None:
    op.create_table(
        "ledger_names",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
    )
    op.create_table(
        "emission_prices",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("signal", sa.String(200), nullable=False),
        sa.Column("stand_in", sa.String(200), nullable=False),
        sa.Column("quality", sa.String(16), nullable=False),
        sa.Column("energy_quality", sa.String(64), nullable=False),
        sa.Column("pue_milli", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
    )
    op.create_index("emission_prices_once", "emission_prices", list(PRICE), unique=True)
    op.create_table(
        "emission_rows",
        sa.Column("run_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("scenario", sa.String(16), primary_key=True),
        sa.Column("gpu_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("slot_start", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("line", sa.String(32), primary_key=True),
        sa.Column("slot_end", sa.BigInteger(), nullable=False),
        sa.Column("price_id", sa.Integer(), nullable=False),
        sa.Column("energy_mj", sa.BigInteger()),
        sa.Column("g_milli_per_kwh", sa.BigInteger()),
        sa.Column("carbon_ug", sa.BigInteger()),
        sa.Column("first_carbon_ug", sa.BigInteger()),
        sa.Column("upper_mj", sa.BigInteger(), nullable=False),
        sa.Column("upper_ug", sa.BigInteger()),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("emission_rows_by_start", "emission_rows", ["slot_start"])
