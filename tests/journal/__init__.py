"""Tests of the journal on SQLite and PostgreSQL."""
