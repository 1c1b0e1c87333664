"""The tests, one folder per room, beside the parts that all of them share.

conftest.py      fixtures: a private PostgreSQL server, a fresh journal address per test
postgresql.py    starting and stopping that server
strict_skips.py  in CI a skipped test fails the run, unless it is marked `gpu`
compiled_once.py compiles for all workers of a parallel run, before they start
laws/            what DESIGN calls laws: imports, purity, what a process may load
packaging/       the wheel, the map in pyproject.toml and the links in wattmesh/
docs/            nothing that a person can meet is missing from docs/

Tests import `wattmesh.*` only, and never a room by its bare folder name.
"""
