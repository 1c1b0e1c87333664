"""Rows of grams, whose names and prices are stored once: they read as they were written."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, func, select
from sqlalchemy.exc import IntegrityError

from tests.builders.runs import T0
from tests.journal.test_ledger import EMISSION
from wattmesh.controller.journal.database.tables import (
    EMISSION_PRICES,
    EMISSION_ROWS,
    EMISSIONS,
    LEDGER_NAMES,
)
from wattmesh.controller.journal.database.values import columns, to_us
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.migrations.upgrade import upgrade

ROWS = (
    EMISSION,
    replace(EMISSION, run="", gpu_uuid="r", line="idle"),
    replace(EMISSION, scenario="baseline", gpu_uuid="", line="as_run", carbon_ug=None, signal="x"),
    replace(EMISSION, scenario="best_single", gpu_uuid="", line="modelled", model="it's ü; --"),
    replace(EMISSION, gpu_uuid="g2", pue_milli=1250, stand_in="y", energy_quality="simulated"),
)


def key(row: EmissionRow) -> tuple[str, ...]:
    """Order rows."""
    return row.scenario, row.run, row.gpu_uuid, row.line


def old_row(row: EmissionRow) -> dict[str, object]:
    """Give the columns of a row, as every revision stores them."""
    times = {"slot_start": to_us(row.slot_start), "slot_end": to_us(row.slot_end)}
    return {**columns(row), **times}


def test_rows_of_an_older_journal_read_as_they_were(journal_url: str) -> None:
    """Every column of every row, and the daemon goes on writing the same rows."""
    upgrade(journal_url, "0012")
    engine, old = create_engine(journal_url), MetaData()
    old.reflect(engine, only=["emissions"])
    with engine.begin() as connection:
        connection.execute(old.tables["emissions"].insert(), [old_row(row) for row in ROWS])
    engine.dispose()
    upgrade(journal_url)
    journal = Journal.open(journal_url)
    assert sorted(journal.ledger.emissions(), key=key) == sorted(ROWS, key=key)
    dearer = replace(ROWS[0], carbon_ug=9, quality="measured", model="")
    journal.ledger.emit([dearer])
    assert sorted(journal.ledger.emissions(), key=key) == sorted((dearer, *ROWS[1:]), key=key)
    journal.close()


def test_an_upgrade_that_would_lose_a_row_changes_nothing(tmp_path: Path) -> None:
    """The sabotaged twin: a row that no name can be found for stops it, and stays."""
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    upgrade(url, "0012")
    engine, old = create_engine(url), MetaData()
    old.reflect(engine, only=["emissions"])
    table = old.tables["emissions"]
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE emissions RENAME TO was")
        connection.exec_driver_sql("CREATE TABLE emissions AS SELECT * FROM was")
        connection.execute(table.insert(), [{**old_row(ROWS[0]), "model": None}])
        connection.exec_driver_sql("DROP TABLE was")
    with pytest.raises(IntegrityError, match="NOT NULL"):
        upgrade(url)
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(table)).scalar_one() == 1
    engine.dispose()


def test_names_and_prices_are_stored_once(journal: Journal) -> None:
    """However many rows have them, and however often these are written anew."""
    later = [
        replace(EMISSION, slot_start=T0.replace(hour=n), gpu_uuid=f"g{n % 3}") for n in range(9)
    ]
    for _ in range(2):
        journal.ledger.emit(later)
    with journal.database.reading() as connection:
        sizes = [
            connection.execute(select(func.count()).select_from(each)).scalar_one()
            for each in (EMISSION_ROWS, LEDGER_NAMES, EMISSION_PRICES, EMISSIONS)
        ]
    assert sizes == [9, 1 + 3, 1, 9]
