"""The journal's past shapes (Alembic), and how to bring an old one up to date.

The map:
    __init__.py        the head revision, readable without alembic
    upgrade.py         run what is missing (imports alembic: never inside the daemon)
    __main__.py        the same as a process: `python -m wattmesh.migrations URL`
    env.py             what alembic runs
    versions/          one file per change
"""

REVISIONS = (
    *("0001", "0002", "0003", "0004", "0005"),
    *("0006", "0007", "0008", "0009", "0010"),
    *("0011", "0012", "0013", "0014", "0015"),
    *("0016", "0017", "0018"),
)
"""Every revision, oldest first."""

HEAD = REVISIONS[-1]
