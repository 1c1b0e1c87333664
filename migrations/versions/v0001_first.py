"""The journal as first released."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "carbon_fetches",
        sa.Column("signal", sa.String(length=200), nullable=False),
        sa.Column("ok_at", sa.BigInteger(), nullable=True),
        sa.Column("failed_at", sa.BigInteger(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("signal"),
    )
    op.create_table(
        "carbon_points",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("signal", sa.String(length=200), nullable=False),
        sa.Column("start_at", sa.BigInteger(), nullable=False),
        sa.Column("end_at", sa.BigInteger(), nullable=False),
        sa.Column("g_milli_per_kwh", sa.BigInteger(), nullable=False),
        sa.Column("quality", sa.String(length=16), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("fetched_at", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("carbon_points_by_start", "carbon_points", ["signal", "start_at"], unique=False)
    op.create_table(
        "counters",
        sa.Column("gpu_uuid", sa.String(length=64), nullable=False),
        sa.Column("energy_mj", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("monotonic_s", sa.Float(), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("booked_mj", sa.BigInteger(), nullable=False),
        sa.Column("unobserved_ms", sa.BigInteger(), nullable=False),
        sa.Column("recovered_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("gpu_uuid"),
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("current", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("numbers", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_decisions_run"), "decisions", ["run"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node", "boot_id"),
    )
    op.create_table(
        "emissions",
        sa.Column("scenario", sa.String(length=16), nullable=False),
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("gpu_uuid", sa.String(length=64), nullable=False),
        sa.Column("slot_start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("line", sa.String(length=32), nullable=False),
        sa.Column("slot_end", sa.BigInteger(), nullable=False),
        sa.Column("signal", sa.String(length=200), nullable=False),
        sa.Column("quality", sa.String(length=16), nullable=False),
        sa.Column("energy_mj", sa.BigInteger(), nullable=True),
        sa.Column("g_milli_per_kwh", sa.BigInteger(), nullable=True),
        sa.Column("pue_milli", sa.Integer(), nullable=False),
        sa.Column("carbon_ug", sa.BigInteger(), nullable=True),
        sa.Column("first_carbon_ug", sa.BigInteger(), nullable=True),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scenario", "run", "gpu_uuid", "slot_start", "line"),
    )
    op.create_index("emissions_by_start", "emissions", ["slot_start"], unique=False)
    op.create_table(
        "energy",
        sa.Column("gpu_uuid", sa.String(length=64), nullable=False),
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("slot_start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("slot_end", sa.BigInteger(), nullable=False),
        sa.Column("incarnation", sa.String(length=64), nullable=False),
        sa.Column("energy_mj", sa.BigInteger(), nullable=True),
        sa.Column("unobserved_ms", sa.BigInteger(), nullable=False),
        sa.Column("upper_mj", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("quality", sa.String(length=16), nullable=False),
        sa.Column("line", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("gpu_uuid", "run", "slot_start", "line"),
    )
    op.create_index("energy_by_start", "energy", ["slot_start"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_events_at"), "events", ["at"], unique=False)
    op.create_table(
        "freeze_all",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "incarnations",
        sa.Column("incarnation", sa.String(length=64), nullable=False),
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("incarnation"),
    )
    op.create_index(op.f("ix_incarnations_run"), "incarnations", ["run"], unique=False)
    op.create_table(
        "leadership",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.String(length=255), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "node_counters",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("gpu_uuid", sa.String(length=64), nullable=False),
        sa.Column("energy_mj", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("monotonic_s", sa.Float(), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("booked_mj", sa.BigInteger(), nullable=False),
        sa.Column("unobserved_ms", sa.BigInteger(), nullable=False),
        sa.Column("recovered_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node", "gpu_uuid"),
    )
    op.create_table(
        "nodes",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("retired_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("node"),
    )
    op.create_table(
        "operating_points",
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("point", sa.String(length=64), nullable=False),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("clock_mhz", sa.Integer(), nullable=True),
        sa.Column("tokens_per_s", sa.Float(), nullable=False),
        sa.Column("power_w", sa.Float(), nullable=False),
        sa.Column("equivalence", sa.String(length=16), nullable=False),
        sa.Column("evidence", sa.String(length=16), nullable=False),
        sa.Column("sources", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run", "point"),
    )
    op.create_table(
        "rollups",
        sa.Column("scenario", sa.String(length=16), nullable=False),
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("line", sa.String(length=32), nullable=False),
        sa.Column("signal", sa.String(length=200), nullable=False),
        sa.Column("quality", sa.String(length=16), nullable=False),
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("energy_mj", sa.BigInteger(), nullable=False),
        sa.Column("unobserved_ms", sa.BigInteger(), nullable=False),
        sa.Column("upper_mj", sa.BigInteger(), nullable=False),
        sa.Column("carbon_ug", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("first_carbon_ug", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scenario", "run", "line", "signal", "quality", "day"),
    )
    op.create_table(
        "runs",
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("owner_uid", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("ranks", sa.Text(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("tokens_total", sa.BigInteger(), nullable=False),
        sa.Column("tokens_per_s", sa.Float(), nullable=True),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("boundary_every", sa.Integer(), nullable=False),
        sa.Column("checkpoint_step", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint_digest", sa.String(length=128), nullable=False),
        sa.Column("phase", sa.String(length=64), nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("incarnation_at", sa.BigInteger(), nullable=False),
        sa.Column("outage_from", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("catalogue", sa.Text(), nullable=True),
        sa.Column("catalogue_digest", sa.String(length=64), nullable=False),
        sa.Column("baseline", sa.String(length=64), nullable=False),
        sa.Column("deadline", sa.BigInteger(), nullable=True),
        sa.Column("frozen", sa.Text(), nullable=False),
        sa.Column("thawed_at", sa.BigInteger(), nullable=True),
        sa.Column("ordered_point", sa.String(length=64), nullable=False),
        sa.Column("ordered_reason", sa.Text(), nullable=False),
        sa.Column("clock_mhz", sa.Integer(), nullable=True),
        sa.Column("clock_at", sa.BigInteger(), nullable=True),
        sa.Column("capabilities", sa.Text(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("scheduler_key", sa.String(length=255), nullable=False),
        sa.Column("released", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run"),
    )
    op.create_table(
        "switches",
        sa.Column("plan", sa.String(length=64), nullable=False),
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("open_run", sa.String(length=64), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("from_point", sa.String(length=64), nullable=False),
        sa.Column("to_point", sa.String(length=64), nullable=False),
        sa.Column("wire_order", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("requested_by", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("predicted_ug", sa.BigInteger(), nullable=True),
        sa.Column("switch_cost_ug", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("plan"),
        sa.UniqueConstraint("open_run"),
    )
    op.create_index(op.f("ix_switches_run"), "switches", ["run"], unique=False)
    op.create_table(
        "token_marks",
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("slot_start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("slot_end", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("speed", sa.Float(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run", "slot_start"),
    )
    op.create_table(
        "transitions",
        sa.Column("plan", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("plan", "state"),
    )
    op.create_index(op.f("ix_transitions_run"), "transitions", ["run"], unique=False)
