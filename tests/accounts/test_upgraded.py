"""Journals of the first revision, with runs in them: upgraded, their books go on and claim nothing.

The old journal is a journal of today, brought back: what the first revision had no column for is
left out, and its baseline rows say nothing of where the run was, as they did then.
"""

import pytest
from sqlalchemy import MetaData, create_engine, select
from sqlalchemy.types import String

from tests.builders.accounts import GPUS, Life, accounts, intensity, register, saved, slot
from tests.builders.runs import PLAN
from wattmesh.controller.accounting.baseline_ledger import BaselineLedger
from wattmesh.controller.accounting.budget import budget
from wattmesh.controller.accounting.saving import EARLIER_VERSION
from wattmesh.controller.journal.database.tables import METADATA, VIEWS
from wattmesh.controller.journal.journal import Journal
from wattmesh.migrations.upgrade import upgrade

SLOTS = 6
TODAY = {**METADATA.tables, **VIEWS.tables}


@pytest.fixture
def before(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """Give a journal in which a run was trained for some slots, and goes on."""
    url = f"sqlite:///{tmp_path_factory.mktemp('before') / 'journal.db'}"
    upgrade(url)
    journal = Journal.open(url)
    intensity(journal, [100.0] * 40)
    life = Life(journal=journal)
    life.begin()
    life.live(SLOTS)
    return journal


def aged(before: Journal, url: str) -> Journal:
    """Copy a journal into one of the first revision, and upgrade that."""
    upgrade(url, "0001")
    old = MetaData()
    engine = create_engine(url)
    old.reflect(engine)
    with before.database.reading() as source, engine.begin() as target:
        for table in old.sorted_tables:
            if table.name not in TODAY or table.name in ("rollups", "leadership"):
                continue
            found = source.execute(select(TODAY[table.name]))
            empty = {
                column.name: "" if isinstance(column.type, String) else 0
                for column in table.columns
                if not column.nullable
            }
            names = [column.name for column in table.columns]
            values = [
                {name: row._mapping.get(name, empty.get(name)) for name in names} for row in found
            ]
            for each in values:
                if table.name == "emissions" and each["scenario"] == "baseline":
                    each |= {"line": "", "energy_mj": 5_000_000, "carbon_ug": 139_000, "model": ""}
            if values:
                target.execute(table.insert(), values)
    engine.dispose()
    before.close()
    upgrade(url)
    return Journal.open(url)


def go_on(journal: Journal, unread: tuple[str, ...] = ()) -> Life:
    """Let the run live on under the new version."""
    life = Life(journal=journal, slots=SLOTS, tokens=SLOTS * 30_000, unread=unread)
    life.books = accounts(journal, life.signal)
    life.live(4)
    return life


def test_a_run_over_an_upgrade_has_no_saving_and_stops_nobody(
    before: Journal, journal_url: str
) -> None:
    """Its baseline did not note where it was; a run that begins afterwards is told as ever."""
    journal = aged(before, journal_url)
    life = go_on(journal)
    register(journal, run="new", name="new", incarnation="n1", now=slot(life.slots), plan=PLAN)
    life.live(3)
    found = saved(journal, slot(life.slots))
    assert (found.saved_ug, found.why) == (None, EARLIER_VERSION)
    assert found.actual_ug == pytest.approx(13 * 4 * 12_000_000 * 100_000 / 3_600_000, rel=1e-3)
    view = budget(journal, slot(life.slots), str(life.signal))
    assert (view.saved, view.total.unobserved_s) == ((), 0.0)
    rows = journal.ledger.emissions("new", scenario="baseline")
    assert rows  # it was reckoned, although the old run came first
    journal.close()


def test_a_gpu_that_goes_dark_after_an_upgrade_is_booked(before: Journal, journal_url: str) -> None:
    """The newest launch keeps its GPUs, and what was read before is taken for read."""
    journal = aged(before, journal_url)
    life = go_on(journal, unread=(GPUS[3],))
    found = saved(journal, slot(life.slots))
    assert found.upper_ug is not None
    assert found.upper_ug > 0
    unread = [row for row in journal.ledger.energy() if row.line == "unobserved"]
    assert {row.gpu_uuid for row in unread} == {GPUS[3]}
    assert min(row.slot_start for row in unread) >= slot(SLOTS)
    journal.close()


def test_one_run_that_cannot_be_reckoned_stops_no_other(
    before: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grams of all are brought up to date, and the failure is heard of, with its run."""
    register(before, run="new", name="new", incarnation="n1", now=slot(SLOTS), plan=PLAN)
    update = BaselineLedger.update

    def broken(self: BaselineLedger, run: object, now: object, *, anew: bool) -> bool:
        if getattr(run, "run", "") == "r":
            raise ValueError("a history that nobody foresaw")
        return update(self, run, now, anew=anew)  # type: ignore[arg-type]

    monkeypatch.setattr(BaselineLedger, "update", broken)
    life = Life(journal=before, slots=SLOTS, tokens=SLOTS * 30_000)
    life.books = accounts(before, life.signal)
    with pytest.raises(ValueError, match="nobody foresaw") as told:
        life.books.price(slot(SLOTS + 2))
    assert told.value.__notes__ == ["while the baseline of run r (llm) was computed"]
    assert before.ledger.emissions("new", scenario="baseline")
    before.close()
