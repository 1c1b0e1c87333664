"""The outbox: what is booked is delivered once, whatever is lost, full or damaged in between."""

import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.delivery.ledgers import SLOT, T0, Controller, amounts, counter, row
from tests.agent.delivery.outboxes import _closed, fresh, opened
from wattmesh.controller.agent.coarsen import UnsentRow, coarser
from wattmesh.controller.agent.outbox import AgentOutbox
from wattmesh.errors import FixInput, InputInvalid, JournalUnavailable
from wattmesh.telemetry.energy.delivery import MOST_ROWS, EnergyBatch
from wattmesh.telemetry.readings import merged_quality

__all__ = ["_closed"]


def deliver(outbox: AgentOutbox, controller: Controller) -> int:
    """Deliver until nothing is left; count the batches."""
    count = 0
    while (batch := outbox.batch()) is not None:
        controller.take(batch)
        outbox.acknowledged(batch)
        count += 1
    return count


def test_only_what_has_changed_since_is_delivered(tmp_path: Path) -> None:
    """Rows are absolute here and changes there; a row that grows is delivered in parts."""
    outbox, controller = opened(tmp_path), Controller()
    outbox.book([row(), row(1, energy_mj=None, unobserved_ms=7, upper_mj=9)], [counter(1000)])
    assert deliver(outbox, controller) == 1
    outbox.book([row(energy_mj=1500)], [counter(1500)])
    assert deliver(outbox, controller) == 1
    assert [each.energy_mj for each in controller.rows] == [1000, None, 500]
    assert controller.baselines["G0"].energy_mj == 1500
    assert deliver(outbox, controller) == 0


def test_unknown_stays_unknown_and_what_is_taken_back_is_taken_back(tmp_path: Path) -> None:
    """A dark slot whose counter answers later: its time goes, its joules come."""
    outbox, controller = opened(tmp_path), Controller()
    outbox.book([row(energy_mj=None, unobserved_ms=700, upper_mj=900)], [])
    deliver(outbox, controller)
    outbox.book([row(energy_mj=0, unobserved_ms=0, upper_mj=0)], [])
    deliver(outbox, controller)
    assert controller.rows[0].energy_mj is None
    assert controller.rows[1].energy_mj == 0
    assert amounts(controller.rows) == (0, 0, 0)


def test_a_batch_stays_the_same_until_it_is_acknowledged(tmp_path: Path) -> None:
    """Answers get lost, rows grow, the agent is restarted, the machine too: the batch stands."""
    outbox, controller = opened(tmp_path), Controller()
    outbox.book([row()], [])
    first = outbox.batch()
    assert first is not None
    assert controller.take(first)
    outbox.book([row(energy_mj=1600)], [])
    assert outbox.batch() == first
    outbox.close()
    again = opened(tmp_path, boot_id="boot-2", clock_us=lambda: 5)
    same = again.batch()
    assert same == first
    assert not controller.take(same)
    again.acknowledged(same)
    deliver(again, controller)
    assert [(each.energy_mj) for each in controller.rows] == [1000, 600]
    assert controller.newest.keys() == {("n1", "boot-1"), ("n1", "boot-2")}


def test_numbers_rise_within_a_boot_even_if_the_file_was_lost(tmp_path: Path) -> None:
    """The clock since boot is past every number that a lost file can have given."""
    clock_us = iter([1_000_000, 1_000_000, 1_000_500, 1_000_700])
    controller = Controller()
    for life in range(2):
        outbox = opened(tmp_path, clock_us=lambda: next(clock_us))
        for step in range(2):
            outbox.book([row(step, energy_mj=life + step + 1)], [])
            batch = outbox.batch()
            assert batch is not None
            assert controller.take(batch)
            outbox.acknowledged(batch)
        outbox.close()
        (tmp_path / "agent.db").unlink()


def test_a_new_file_waits_for_what_the_controller_has(tmp_path: Path) -> None:
    """Its counters are the ones to go on from; without them nothing is booked twice or lost."""
    outbox = fresh(tmp_path)
    assert outbox.fresh
    with pytest.raises(JournalUnavailable, match="not yet said"):
        outbox.baselines()
    known = counter(4711, source="nvml", booked_mj=5, unobserved_ms=6, recovered_ms=7)
    outbox.adopt([known])
    assert not outbox.fresh
    outbox.adopt([counter(1)])  # once
    assert outbox.baselines() == {"G0": known}


def test_more_rows_than_one_batch_takes_are_delivered_in_several(tmp_path: Path) -> None:
    """Only the last of them says up to where everything is booked."""
    outbox, controller = opened(tmp_path), Controller()
    count = 2 * MOST_ROWS + 1
    outbox.book([row(index) for index in range(count)], [counter(1000 * count)])
    first = outbox.batch()
    assert first is not None
    assert (len(first.rows), first.baselines) == (MOST_ROWS, ())
    assert deliver(outbox, controller) == 3
    assert amounts(controller.rows) == (1000 * count, 0, 0)
    assert controller.baselines["G0"].energy_mj == 1000 * count


def test_an_outbox_at_its_limit_joins_slots_and_loses_nothing(tmp_path: Path) -> None:
    """A controller that is away for ever: the file stays small, the sums stay whole."""
    outbox, controller = opened(tmp_path, limit_mib=1), Controller()
    before = 0
    frozen: list[EnergyBatch | None] = []
    for block in range(30):
        rows = [
            row(600 * block + index, unobserved_ms=3, upper_mj=5, gpu_uuid=f"G{gpu}")
            for index in range(300)
            for gpu in range(2)
        ]
        outbox.book(rows, [])
        before += len(rows)
        if block == 3:
            frozen.append(outbox.batch())  # and never answered until the end
    size = sum(each.stat().st_size for each in tmp_path.iterdir())
    assert size < 3 << 20
    assert outbox.batch() == frozen[0]
    deliver(outbox, controller)
    assert amounts(controller.rows) == (before * 1000, before * 3, before * 5)
    assert len(controller.rows) < before
    spans = [each.slot_end - each.slot_start for each in controller.rows]
    assert max(spans) > SLOT


def test_rows_that_the_sampler_still_remembers_are_never_let_go(tmp_path: Path) -> None:
    """It books them whole again: if they were gone, their old joules would count twice."""
    outbox, controller = opened(tmp_path, limit_mib=1), Controller()
    outbox.book([row(0)], [])
    outbox.energy(T0, T0 + SLOT)
    deliver(outbox, controller)
    many = [row(index, gpu_uuid="G1") for index in range(1, 9000)]
    for at in range(0, len(many), 600):
        outbox.energy(T0, T0 + SLOT)  # as `Pending.unread` makes the sampler do
        outbox.book([row(0, energy_mj=1000), *many[at : at + 600]], [])
        deliver(outbox, controller)
    outbox.book([row(0, energy_mj=1001)], [])
    deliver(outbox, controller)
    assert sum(each.energy_mj or 0 for each in controller.rows if each.gpu_uuid == "G0") == 1001


def test_a_full_disk_is_said_and_nothing_is_half_written(tmp_path: Path) -> None:
    """SQLite's own page limit stands for the full disk."""
    outbox, controller = opened(tmp_path, limit_mib=1), Controller()
    outbox.book([row()], [counter(1000)])
    raw = outbox._file._database  # the limit is the connection's own
    pages = raw.execute("PRAGMA page_count").fetchone()[0]
    raw.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalUnavailable, match="free some space"):
        outbox.book([row(index) for index in range(2000)], [counter(2)])
    assert outbox.energy() == (row(),)
    assert outbox.baselines() == {"G0": counter(1000)}
    raw.execute("PRAGMA max_page_count = 100000")
    outbox.book([row(index) for index in range(2000)], [counter(2_000_000)])
    deliver(outbox, controller)
    assert amounts(controller.rows) == (2_000_000, 0, 0)


def test_two_agents_cannot_share_a_file(tmp_path: Path) -> None:
    """The second is told what to do; when the first is gone it may."""
    first = opened(tmp_path)
    with pytest.raises(FixInput, match="another agent uses"):
        opened(tmp_path)
    first.close()
    opened(tmp_path)


@pytest.mark.parametrize(
    "damage", [b"not a database at all" * 400, b"SQLite format 3\0" + b"\7" * 5000]
)
def test_a_damaged_file_is_kept_aside_and_a_new_one_begun(tmp_path: Path, damage: bytes) -> None:
    """The controller's counters then cover what was lost with it."""
    (tmp_path / "agent.db").write_bytes(damage)
    outbox = fresh(tmp_path)
    assert outbox.fresh
    aside = [each for each in tmp_path.iterdir() if "damaged" in each.name]
    assert [each.read_bytes() for each in aside] == [damage]


def test_a_missing_folder_names_the_setting(tmp_path: Path) -> None:
    """One sentence with the way out."""
    with pytest.raises(FixInput, match=r"agent\.outbox"):
        opened(tmp_path / "nowhere")


def test_the_file_is_written_through_to_the_disk(tmp_path: Path) -> None:
    """WAL with synchronous FULL, as the journal."""
    outbox = opened(tmp_path)
    raw: sqlite3.Connection = outbox._file._database
    assert raw.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert raw.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_a_batch_survives_the_wire_and_nonsense_is_refused(tmp_path: Path) -> None:
    """Read back equal; each wrong part is named."""
    batch = EnergyBatch(
        node="n1", boot_id="b", seq=3, at=T0, rows=(row(),), baselines=(counter(5),)
    )
    assert EnergyBatch.from_json(batch.to_json()) == batch
    plain = batch.to_json()
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"seq": -1}, "seq"),
        ({"seq": True}, "seq"),
        ({"node": ""}, "node"),
        ({"at": "yesterday"}, "at must be"),
        ({"at": "2026-01-01T00:00:00"}, "zone"),
        ({"rows": {}}, "rows"),
        ({"rows": [{}]}, "row"),
        ({"rows": [plain["rows"][0] | {"energy_mj": -1}]}, "energy_mj"),
        ({"rows": [plain["rows"][0] | {"energy_mj": 1 << 70}]}, "energy_mj"),
        ({"rows": [plain["rows"][0] | {"line": "odd"}]}, "line"),
        ({"rows": [plain["rows"][0] | {"run": ""}]}, "line"),
        ({"rows": [plain["rows"][0] | {"slot_end": plain["rows"][0]["slot_start"]}]}, "before"),
        ({"baselines": [{}]}, "gpu_uuid|monotonic_s"),
    ]
    for wrong, says in wrongs:
        with pytest.raises(InputInvalid, match=says):
            EnergyBatch.from_json(plain | wrong)


ROWS = st.lists(
    st.builds(
        lambda index, gpu, run, energy, unobserved, upper, quality: row(
            index,
            gpu_uuid=gpu,
            run=run,
            line="run" if run else "idle",
            energy_mj=energy,
            unobserved_ms=unobserved,
            upper_mj=upper,
            quality=quality,
        ),
        st.integers(0, 20),
        st.sampled_from(["G0", "G1"]),
        st.sampled_from(["", "run-1", "run-2"]),
        st.none() | st.integers(0, 10**12),
        st.integers(-(10**6), 10**6),
        st.integers(-(10**9), 10**9),
        st.sampled_from(["measured", "estimated", "simulated"]),
    ),
    unique_by=lambda each: (each.gpu_uuid, each.run, each.slot_start),
)


@given(rows=ROWS)
def test_joined_slots_add_up_to_what_they_were(rows: list[Any]) -> None:
    """Per device and run, again and again, until each has one slot; every flag stays."""
    index = timedelta(microseconds=1)
    kept = [
        UnsentRow(key=(r.gpu_uuid, r.run, (r.slot_start - T0) // index, r.line), unsent=r)
        for r in rows
    ]
    for _ in range(6):
        joined = coarser(kept)
        gone = {key for each in joined for key in each.replaces}
        kept = [each for each in kept if each.key not in gone] + [
            UnsentRow(key=each.replaces[0], unsent=each.row) for each in joined
        ]
    for gpu, run in {(each.gpu_uuid, each.run) for each in rows}:
        before = [r for r in rows if (r.gpu_uuid, r.run) == (gpu, run)]
        after = [k.unsent for k in kept if (k.unsent.gpu_uuid, k.unsent.run) == (gpu, run)]
        assert len(after) == 1
        assert amounts(after) == amounts(before)
        assert (after[0].energy_mj is None) == all(each.energy_mj is None for each in before)
        assert after[0].quality == merged_quality(each.quality for each in before)


def test_a_slot_whose_line_changed_has_a_row_for_each(tmp_path: Path) -> None:
    """Idle, then unattributed: both are kept, both are delivered."""
    outbox, controller = opened(tmp_path), Controller()
    idle, odd = row(run="", line="idle"), row(run="", line="unattributed", energy_mj=5)
    outbox.book([idle, odd], [])
    deliver(outbox, controller)
    assert {each.line: each.energy_mj for each in controller.rows} == {
        "idle": 1000,
        "unattributed": 5,
    }
