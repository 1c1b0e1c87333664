"""The journal's database: tables, transactions, faults, copies.

The map:
    copies.py      backs up and restores a SQLite journal
    engine.py      opens the database with its safest settings
    failures.py    database errors as sentences
    identity.py    the UUID of a journal; epochs count within it
    patience.py    connections to PostgreSQL with a deadline for every wait
    pooled.py      the same settings in every transaction, through pgbouncer too
    prepared.py    statements that are built once
    read_once.py   removes energy that two readers of one device booked twice
    schema.py      upgrades a SQLite journal in a child process
    shown_url.py   a database's address without its secrets (pure)
    sqlite_url.py  converts between paths and database URLs
    stored.py      makes rows of older versions readable (pure)
    tables.py      all tables
    values.py      exact times, JSON text, upserts
"""
