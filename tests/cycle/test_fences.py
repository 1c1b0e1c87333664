"""What a person is told of actuators that obey another journal or epoch."""

from datetime import UTC, datetime, timedelta

from wattmesh.controller.cycle.fences import refusing, sentences
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.telemetry.desired import Applied

NOW = datetime(2026, 11, 22, tzinfo=UTC)
OURS, THEIRS = "3b0c7c9e-41f5-4a0e-9d1c-0a7f2f4a5b01", "9d1c7c9e-41f5-4a0e-9d1c-0a7f2f4a5b02"
STEP = f"--obey {OURS}:6`"


def node(number: int, fenced: str, *, age_s: float = 1.0, epoch: int = 7) -> NodeRow:
    """Give a node with what its actuator said."""
    journal = THEIRS if fenced == "journal" else OURS
    applied = Applied(mode="enforce", epoch=epoch, journal=journal, fenced=fenced)
    return NodeRow(
        node=f"n{number}",
        boot_id="b",
        last_seen_at=NOW - timedelta(seconds=age_s),
        devices={},
        facts={"applied": applied.to_json()},
    )


def told(*nodes: NodeRow) -> tuple[str, ...]:
    """Say it."""
    return sentences(nodes, NOW, journal=OURS, epoch=6)


def test_one_sentence_for_each_reason_with_the_exact_next_step() -> None:
    """However many nodes; the first colon stands before what is to be done."""
    other, wrong = told(*(node(n, "journal") for n in range(7)), node(8, "epoch"), node(9, ""))
    assert other.startswith("7 actuators (n0, n1, n2, n3, n4, ...) obey another journal")
    assert THEIRS in other.partition(":")[0]
    assert STEP in other.partition(":")[2]
    assert wrong.startswith("1 actuator (n8) obeys epoch 7 of this journal, which is at 6, so")
    assert "`wattmesh db renew`" in wrong
    assert STEP in wrong


def test_who_obeys_or_is_silent_or_says_nonsense_is_not_told_of() -> None:
    """A node of an older version says nothing of fences."""
    strange = NodeRow(
        node="n3", boot_id="b", last_seen_at=NOW, devices={}, facts={"applied": {"fenced": 1}}
    )
    ours = node(5, "journal")
    ours.facts["applied"]["journal"] = OURS
    older = node(4, "journal")
    del older.facts["applied"]["fenced"], older.facts["applied"]["journal"]
    assert told(node(1, ""), node(2, "journal", age_s=3600.0), strange, older, ours) == ()
    found = refusing([node(1, "journal"), node(2, "epoch")], NOW)
    assert {why: list(each) for why, each in found.items()} == {"journal": ["n1"], "epoch": ["n2"]}
