"""Every table of the journal as it is at the head revision. SQLAlchemy Core, no ORM.

Times are whole microseconds since 1970 (UTC), exact and sortable on every database; energy is
whole millijoules, carbon whole micrograms; layouts and other structures are JSON text.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

METADATA = MetaData()

RUNS = Table(
    "runs",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("owner_uid", BigInteger, nullable=False),
    Column("incarnation", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("seq", Integer, nullable=False, default=0),
    Column("layout", Text, nullable=False),
    Column("ranks", Text, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("gpus", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("samples", BigInteger, nullable=False, default=0),
    Column("tokens", BigInteger, nullable=False),
    Column("tokens_total", BigInteger, nullable=False),
    Column("tokens_per_s", Float),
    Column("loss", Float),
    Column("boundary_every", Integer, nullable=False),
    Column("checkpoint_step", BigInteger, nullable=False, default=0),
    Column("checkpoint_digest", String(128), nullable=False, default=""),
    Column("phase", String(64), nullable=False, default=""),
    Column("trouble", Text, nullable=False, default=""),
    Column("registered_at", BigInteger, nullable=False),
    Column("last_seen_at", BigInteger, nullable=False),
    Column("incarnation_at", BigInteger, nullable=False),
    Column("outage_from", BigInteger),
    Column("finished_at", BigInteger),
    Column("finish_reason", Text, nullable=False, default=""),
    Column("catalogue", Text),
    Column("catalogue_digest", String(64), nullable=False, default=""),
    Column("baseline", String(64), nullable=False, default=""),
    Column("best_single", String(64), nullable=False, default=""),
    Column("deadline", BigInteger),
    Column("frozen", Text, nullable=False, default=""),
    Column("thawed_at", BigInteger),
    Column("ordered_point", String(64), nullable=False, default=""),
    Column("ordered_reason", Text, nullable=False, default=""),
    Column("clock_mhz", Integer),
    Column("clock_at", BigInteger),
    Column("capabilities", Text, nullable=False),
    Column("host", String(255), nullable=False, default=""),
    Column("pid", Integer, nullable=False, default=0),
    Column("scheduler_key", String(255), nullable=False, default=""),
    Column("released", Text, nullable=False, default="[]"),
    Column("protocol", Integer, nullable=False, default=1),
    Column("progress_at", BigInteger),
    Column("pause_share", Float, nullable=False, default=0.0),
    Column("speeds", Text, nullable=False, default=""),
    Column("asleep_at", BigInteger),
    Column("wakes_at", BigInteger),
    Column("held_as", String(255), nullable=False, default=""),
    Column("allocated", Text, nullable=False, default="[]"),
)

INCARNATIONS = Table(
    "incarnations",
    METADATA,
    Column("incarnation", String(64), primary_key=True),
    Column("run", String(64), nullable=False, index=True),
    Column("attempt", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("last_seen_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("end_reason", Text, nullable=False, default=""),
    Column("gpus", Text, nullable=False, default="[]"),
    Column("released", Text, nullable=False, default="[]"),
    Column("asleep_release", String(16), nullable=False, default=""),
    Column("waited_us", BigInteger),
    Column("allocated", Text, nullable=False, default="[]"),
)

STAYS = Table(
    "stays",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("layout", Text, nullable=False),
    Column("clock_mhz", Integer),
    Column("switching", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
)

POINTS = Table(
    "operating_points",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("point", String(64), primary_key=True),
    Column("layout", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("clock_mhz", Integer),
    Column("tokens_per_s", Float, nullable=False),
    Column("power_w", Float, nullable=False),
    Column("equivalence", String(16), nullable=False),
    Column("evidence", String(16), nullable=False),
    Column("sources", Text, nullable=False),
)

CARBON_POINTS = Table(
    "carbon_points",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("signal", String(200), nullable=False),
    Column("start_at", BigInteger, nullable=False),
    Column("end_at", BigInteger, nullable=False),
    Column("g_milli_per_kwh", BigInteger, nullable=False),
    Column("quality", String(16), nullable=False),
    Column("issued_at", BigInteger, nullable=False),
    Column("fetched_at", BigInteger, nullable=False),
    Column("model", String(64), nullable=False, default=""),
    Index("carbon_points_by_start", "signal", "start_at"),
)

CARBON_FETCHES = Table(
    "carbon_fetches",
    METADATA,
    Column("signal", String(200), primary_key=True),
    Column("ok_at", BigInteger),
    Column("failed_at", BigInteger),
    Column("detail", Text, nullable=False, default=""),
    Column("state", String(16), nullable=False, default=""),
    Column("deep_at", BigInteger),
    Column("filled_from", BigInteger),
    Column("rung", String(16), nullable=False, default=""),
    Column("rung_at", BigInteger),
)

CARBON_FORECASTS = Table(
    "carbon_forecasts",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("signal", String(200), nullable=False),
    Column("rung", String(16), nullable=False),
    Column("source", String(64), nullable=False),
    Column("issued_at", BigInteger, nullable=False),
    Column("fetched_at", BigInteger, nullable=False),
    Column("model", String(200), nullable=False, default=""),
    Column("first_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("slots", Text, nullable=False),
    Column("parts", Text, nullable=False, default=""),
    Index("carbon_forecasts_by_issue", "signal", "source", "issued_at"),
)

CARBON_SKILL = Table(
    "carbon_skill",
    METADATA,
    Column("signal", String(200), primary_key=True),
    Column("skill", Text, nullable=False, default=""),
    Column("at", BigInteger, nullable=False, default=0),
    Column("usual", Text, nullable=False, default=""),
)

EXOGENOUS_POINTS = Table(
    "exogenous_points",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("series", String(200), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("start_at", BigInteger, nullable=False),
    Column("milli", BigInteger, nullable=False),
    Column("known_at", BigInteger, nullable=False),
    Index("exogenous_points_by_start", "series", "start_at"),
)

ENERGY = Table(
    "energy",
    METADATA,
    Column("gpu_uuid", String(64), primary_key=True),
    Column("run", String(64), primary_key=True),
    Column("slot_start", BigInteger, primary_key=True, autoincrement=False),
    Column("slot_end", BigInteger, nullable=False),
    Column("incarnation", String(64), nullable=False),
    Column("energy_mj", BigInteger),
    Column("unobserved_ms", BigInteger, nullable=False),
    Column("upper_mj", BigInteger, nullable=False),
    Column("source", String(32), nullable=False),
    Column("quality", String(64), nullable=False),
    Column("line", String(32), primary_key=True),
    Index("energy_by_start", "slot_start"),
    Index(
        "energy_unobserved",
        "slot_start",
        sqlite_where=text("unobserved_ms > 0"),
        postgresql_where=text("unobserved_ms > 0"),
    ),
)

LEDGER_NAMES = Table(
    "ledger_names",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(64), nullable=False, unique=True),
)
"""Runs and devices that rows of the ledger name."""

EMISSION_PRICES = Table(
    "emission_prices",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("signal", String(200), nullable=False),
    Column("stand_in", String(200), nullable=False),
    Column("quality", String(16), nullable=False),
    Column("energy_quality", String(64), nullable=False),
    Column("pue_milli", Integer, nullable=False),
    Column("model", String(64), nullable=False),
    Index(
        "emission_prices_once",
        *("signal", "stand_in", "quality", "energy_quality", "pue_milli", "model"),
        unique=True,
    ),
)
"""How rows were priced: few that differ, for millions of rows."""

EMISSION_ROWS = Table(
    "emission_rows",
    METADATA,
    Column("run_id", Integer, primary_key=True, autoincrement=False),
    Column("scenario", String(16), primary_key=True),
    Column("gpu_id", Integer, primary_key=True, autoincrement=False),
    Column("slot_start", BigInteger, primary_key=True, autoincrement=False),
    Column("line", String(32), primary_key=True),
    Column("slot_end", BigInteger, nullable=False),
    Column("price_id", Integer, nullable=False),
    Column("energy_mj", BigInteger),
    Column("g_milli_per_kwh", BigInteger),
    Column("carbon_ug", BigInteger),
    Column("first_carbon_ug", BigInteger),
    Column("upper_mj", BigInteger, nullable=False, default=0),
    Column("upper_ug", BigInteger),
    Column("tokens", BigInteger, nullable=False),
    Index("emission_rows_by_start", "slot_start"),
    sqlite_with_rowid=False,
)
"""What `energy/emission_rows.py` writes, and what is deleted; everybody reads `EMISSIONS`."""

VIEWS = MetaData()

EMISSIONS = Table(
    "emissions",
    VIEWS,
    Column("scenario", String(16), primary_key=True),
    Column("run", String(64), primary_key=True),
    Column("gpu_uuid", String(64), primary_key=True),
    Column("slot_start", BigInteger, primary_key=True, autoincrement=False),
    Column("line", String(32), primary_key=True),
    Column("slot_end", BigInteger, nullable=False),
    Column("signal", String(200), nullable=False),
    Column("stand_in", String(200), nullable=False),
    Column("quality", String(16), nullable=False),
    Column("energy_quality", String(64), nullable=False),
    Column("energy_mj", BigInteger),
    Column("g_milli_per_kwh", BigInteger),
    Column("pue_milli", Integer, nullable=False),
    Column("carbon_ug", BigInteger),
    Column("first_carbon_ug", BigInteger),
    Column("upper_mj", BigInteger, nullable=False),
    Column("upper_ug", BigInteger),
    Column("tokens", BigInteger, nullable=False),
    Column("model", String(64), nullable=False),
)
"""A view: `EMISSION_ROWS` with their names and prices spelt out."""

ROLLUPS = Table(
    "rollups",
    METADATA,
    Column("scenario", String(16), primary_key=True),
    Column("run", String(64), primary_key=True),
    Column("line", String(32), primary_key=True),
    Column("signal", String(200), primary_key=True),
    Column("stand_in", String(200), primary_key=True),
    Column("quality", String(16), primary_key=True),
    Column("energy_quality", String(64), primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("energy_mj", BigInteger, nullable=False),
    Column("unobserved_ms", BigInteger, nullable=False),
    Column("upper_mj", BigInteger, nullable=False),
    Column("upper_ug", BigInteger, nullable=False),
    Column("carbon_ug", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("first_carbon_ug", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

LEDGER_CHANGES = Table(
    "ledger_changes",
    METADATA,
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("changes", BigInteger, nullable=False),
)

BUDGET_PLANS = Table(
    "budget_plans",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(200), nullable=False),
    Column("period", String(32), nullable=False),
    Column("start_at", BigInteger, nullable=False),
    Column("end_at", BigInteger, nullable=False),
    Column("made_at", BigInteger, nullable=False),
    Column("limit_ug", BigInteger, nullable=False),
    Column("hours_ug", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("signal", String(200), nullable=False, default=""),
    Index("budget_plans_by_period", "name", "start_at"),
)

CLOSED_PERIODS = Table(
    "closed_periods",
    METADATA,
    Column("period", String(32), primary_key=True),
    Column("timezone", String(64), primary_key=True),
    Column("start_at", BigInteger, nullable=False),
    Column("end_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger, nullable=False),
    Column("figures", Text, nullable=False),
)

REOPENED_PERIODS = Table(
    "reopened_periods",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    *(Column(each.name, each.type, nullable=False) for each in CLOSED_PERIODS.c),
    Column("reopened_at", BigInteger, nullable=False),
    Column("by", String(255), nullable=False),
    Column("reason", Text, nullable=False),
)

CLOCK_MARKS = Table(
    "clock_marks",
    METADATA,
    Column("host", String(255), primary_key=True),
    Column("boot_id", String(64), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("monotonic_us", BigInteger, nullable=False),
    Column("held_us", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
    Column("stepped_us", BigInteger, nullable=False, default=0),
)

POWER_CAPS = Table(
    "power_caps",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("cap_w", Float, nullable=False),
    Column("from_at", BigInteger, nullable=False),
    Column("until_at", BigInteger, nullable=False),
    Column("by", String(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("ended_at", BigInteger),
    Column("ended_by", String(255), nullable=False, default=""),
    Column("origin", String(16), nullable=False, default="operator"),
    Column("signal", String(200), nullable=False, default=""),
    Column("unit", String(16), nullable=False, default=""),
    Column("value", Float),
    Column("threshold", Float),
    Column("issued_at", BigInteger),
    Index("power_caps_by_end", "until_at"),
)

COUNTERS = Table(
    "counters",
    METADATA,
    Column("gpu_uuid", String(64), primary_key=True),
    Column("energy_mj", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("monotonic_s", Float, nullable=False),
    Column("boot_id", String(64), nullable=False),
    Column("source", String(32), nullable=False),
    Column("booked_mj", BigInteger, nullable=False),
    Column("unobserved_ms", BigInteger, nullable=False),
    Column("recovered_ms", BigInteger, nullable=False),
    Column("since_us", BigInteger, nullable=False, default=0),
)

COVERAGE = Table(
    "coverage",
    METADATA,
    Column("gpu_uuid", String(64), primary_key=True),
    Column("from_at", BigInteger, primary_key=True, autoincrement=False),
    Column("until_at", BigInteger, nullable=False),
)

NODES = Table(
    "nodes",
    METADATA,
    Column("node", String(255), primary_key=True),
    Column("boot_id", String(64), nullable=False),
    Column("last_seen_at", BigInteger, nullable=False),
    Column("devices", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("retired_at", BigInteger),
    Column("forgotten_at", BigInteger),
)

DELIVERIES = Table(
    "deliveries",
    METADATA,
    Column("node", String(255), primary_key=True),
    Column("boot_id", String(64), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)

NODE_COUNTERS = Table(
    "node_counters",
    METADATA,
    Column("node", String(255), primary_key=True),
    *(
        Column(each.name, each.type, primary_key=each.primary_key, nullable=False)
        for each in COUNTERS.c
    ),
)

NODE_DEVICES = Table(
    "node_devices",
    METADATA,
    Column("gpu_uuid", String(64), primary_key=True),
    Column("node", String(255), nullable=False, index=True),
    Column("seen_at", BigInteger, nullable=False),
)

NODE_TOKENS = Table(
    "node_tokens",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("node", String(255), nullable=False, index=True),
    Column("made_at", BigInteger, nullable=False),
    Column("made_by", String(255), nullable=False),
    Column("ends_at", BigInteger),
    Column("ended_by", String(255), nullable=False, default=""),
)

RUN_NODES = Table(
    "run_nodes",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("node", String(255), nullable=False),
)

TOKEN_MARKS = Table(
    "token_marks",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("slot_start", BigInteger, primary_key=True, autoincrement=False),
    Column("slot_end", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

CLOSED_RUNS = Table(
    "closed_runs",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("closed_at", BigInteger, nullable=False),
    Column("figures", Text, nullable=False),
)

DECISIONS = Table(
    "decisions",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run", String(64), nullable=False, index=True),
    Column("first_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("count", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("action", String(16), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("current", String(64), nullable=False),
    Column("target", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("numbers", Text, nullable=False),
    Column("forecast", Integer),
)

SWITCHES = Table(
    "switches",
    METADATA,
    Column("switch_id", String(64), primary_key=True),
    Column("run", String(64), nullable=False, index=True),
    Column("open_run", String(64), unique=True),
    Column("attempt", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("from_point", String(64), nullable=False),
    Column("to_point", String(64), nullable=False),
    Column("wire_order", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("requested_by", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("predicted_ug", BigInteger),
    Column("switch_cost_ug", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("detail", Text, nullable=False, default=""),
    Column("evidence", Text, nullable=False, default="{}"),
)

TRANSITIONS = Table(
    "transitions",
    METADATA,
    Column("switch_id", String(64), primary_key=True),
    Column("state", String(16), primary_key=True),
    Column("run", String(64), nullable=False, index=True),
    Column("at", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("detail", Text, nullable=False),
    Column("evidence", Text, nullable=False),
)

LEADERSHIP = Table(
    "leadership",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", String(255), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

IDENTITY = Table(
    "identity",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("journal", String(36), nullable=False),
    Column("made_at", BigInteger, nullable=False),
    Column("came_from", String(36), nullable=False, default=""),
)

SCHEMA_FLOOR = Table(
    "schema_floor",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("oldest", String(32), nullable=False),
)
"""One row: the oldest revision whose code works with this schema."""

EVENTS = Table(
    "events",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False, index=True),
    Column("kind", String(64), nullable=False),
    Column("detail", Text, nullable=False),
)

EXPERT_LEARNING = Table(
    "expert_learning",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
)
"""By run, what was learned of its expert costs; see `runs/expert_learning.py`."""

FREEZE = Table(
    "freeze_all",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("reason", Text, nullable=False),
    Column("by", String(255), nullable=False),
    Column("at", BigInteger, nullable=False),
)
