"""The journal's database: tables, transactions, faults, copies.

The map:
    copies.py      a SQLite journal's backup and restore
    engine.py      the database with its safest settings and clear errors
    failures.py    what is wrong with the database, in words
    identity.py    which journal this is: what epochs count in
    patience.py    connections to PostgreSQL whose every wait has an end
    read_once.py   what two readers of one device booked of the same time, cut
    schema.py      a SQLite journal brought up to date in a child process
    sqlite_url.py  a file as a database URL, and back
    stored.py      rows that an older version stored, made fit to be read (pure)
    tables.py      every table
    values.py      exact times, JSON text, upserts
"""
