"""Which orders are taken: decided purely, and kept in a book that survives crashes."""

from dataclasses import replace
from pathlib import Path

import pytest

from wattmesh.reconfig.client.orderbook import OrderBook
from wattmesh.reconfig.client.orders import OrderAnswer, OrderContext, judge
from wattmesh.reconfig.launch.folder import RunFolder, read_json
from wattmesh.reconfig.launch.generation import Generation, Purpose
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Order, Orders, SwitchMode

HERE = OrderContext(
    run="r",
    attempt=3,
    step=100,
    layout=Layout(dp_shard=2),
    ranks=(0, 1),
    launched=4,
    relaunched=False,
    epoch=5,
    done=frozenset({"old"}),
)
GOOD = Order(
    switch_id="new",
    epoch=5,
    run="r",
    attempt=3,
    point="B",
    layout=Layout(tp=4),
    ranks=(3, 2, 1, 0),
    not_before_step=90,
    valid_until_step=110,
)


def test_a_good_order_is_taken() -> None:
    """Right run, attempt, epoch, window and ranks."""
    assert judge(GOOD, HERE) == (OrderAnswer.TAKE, "")


def test_an_order_for_later_waits() -> None:
    """Before its window it is kept."""
    assert judge(replace(GOOD, not_before_step=101), HERE)[0] is OrderAnswer.WAIT


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (replace(GOOD, run="other"), "run other"),
        (replace(GOOD, attempt=2), "attempt 2"),
        (replace(GOOD, attempt=4), "attempt 4"),
        (replace(GOOD, epoch=4), "epoch 4 is older than 5"),
        (replace(GOOD, switch_id="old"), "carried out before"),
        (replace(GOOD, valid_until_step=99), "past its last step 99"),
        (replace(GOOD, ranks=(0, 1, 2)), "names 3 ranks"),
        (replace(GOOD, ranks=(0, 1, 2, 2)), "twice"),
        (replace(GOOD, ranks=(0, 1, 2, 4)), "only 0 to 3 were launched"),
        (replace(GOOD, ranks=(0, 1, 2, -1)), "only 0 to 3 were launched"),
        (replace(GOOD, mode=SwitchMode.RESTART), "nobody would launch this job again"),
        (replace(GOOD, layout=Layout(dp_shard=2), ranks=(0, 1)), "in that layout already"),
    ],
)
def test_a_bad_order_is_void_and_says_why(order: Order, words: str) -> None:
    """Late, foreign, fenced off, repeated or impossible."""
    answer, why = judge(order, HERE)
    assert answer is OrderAnswer.VOID
    assert words in why


RESIZE = replace(GOOD, mode=SwitchMode.RESIZE)
BY_SLURM = replace(HERE, resizes=True)
EIGHT = tuple(range(8))


@pytest.mark.parametrize(
    ("order", "standing", "words"),
    [
        (replace(RESIZE, layout=Layout(tp=8), ranks=EIGHT), BY_SLURM, ""),
        (replace(RESIZE, layout=HERE.layout, ranks=HERE.ranks), BY_SLURM, ""),
        (RESIZE, HERE, "this job's launcher holds none"),
        (replace(RESIZE, layout=Layout(tp=2), ranks=(2, 3)), BY_SLURM, "only 0 to 1 were launched"),
        (
            replace(RESIZE, layout=HERE.layout, ranks=HERE.ranks),
            replace(BY_SLURM, launched=2),
            "in that layout already",
        ),
        (
            replace(GOOD, mode=SwitchMode.RESUME, layout=Layout(tp=8), ranks=EIGHT),
            replace(BY_SLURM, asleep=True),
            "",
        ),
        (
            replace(GOOD, mode=SwitchMode.RESUME, layout=Layout(tp=8), ranks=EIGHT),
            replace(HERE, asleep=True),
            "only 0 to 3 were launched",
        ),
    ],
)
def test_another_size_is_taken_where_the_launcher_holds_such_a_launch(
    order: Order, standing: OrderContext, words: str
) -> None:
    """Its ranks are all that the next launch has; also to give back ranks that are parked."""
    answer, why = judge(order, standing)
    assert (answer is OrderAnswer.TAKE) is (words == "")
    assert words in why


@pytest.fixture
def generation() -> Generation:
    """What trains now."""
    return Generation(
        number=2,
        purpose=Purpose.START,
        run="r",
        incarnation="i",
        attempt=3,
        layout=Layout(dp_shard=2),
        ranks=(0, 1),
    )


def test_an_order_acts_once_even_across_a_crash(tmp_path: Path, generation: Generation) -> None:
    """A plan that was begun is never begun again, and an older epoch is refused from then on."""
    book = OrderBook(RunFolder(tmp_path))
    heard = Orders(order=GOOD, epoch=5)
    assert book.pick(heard, generation, attempt=3, step=100, launched=4, relaunched=True) == GOOD
    book.begin(GOOD, step=100, attempt=3)
    after_crash = OrderBook(RunFolder(tmp_path))
    assert (
        after_crash.pick(heard, generation, attempt=3, step=100, launched=4, relaunched=True)
        is None
    )
    older = Orders(order=replace(GOOD, switch_id="newer", epoch=4))
    assert (
        after_crash.pick(older, generation, attempt=3, step=100, launched=4, relaunched=True)
        is None
    )
    assert (read_json(RunFolder(tmp_path).switch_file) or {})["plan"] == "new"


def test_epochs_count_within_one_journal(tmp_path: Path, generation: Generation) -> None:
    """A new journal begins at 1, and is obeyed; of each one, an older leader is not."""
    (tmp_path / "orders.json").write_text('{"epoch": 9, "done": []}')  # of an older hook

    def taken(journal: str, epoch: int) -> bool:
        book = OrderBook(RunFolder(tmp_path))
        order = replace(GOOD, switch_id=f"{journal}-{epoch}", journal=journal, epoch=epoch)
        heard = Orders(order=order, epoch=epoch)
        picked = book.pick(heard, generation, attempt=3, step=100, launched=4, relaunched=True)
        if picked is not None:
            book.begin(picked, step=100, attempt=3)
        return picked is not None

    asked = [("", 8), ("one", 7), ("new", 1), ("one", 6), ("new", 3), ("new", 2), ("", 9)]
    assert [taken(*each) for each in asked] == [False, True, True, False, True, False, True]
    for each in range(20):
        assert taken(f"j{each}", 1)
    kept = (read_json(RunFolder(tmp_path).orders_file) or {})["epochs"]
    assert kept == [[f"j{each}", 1] for each in range(4, 20)]


def test_nothing_is_taken_while_frozen(tmp_path: Path, generation: Generation) -> None:
    """Hands off means that no order acts, whatever its window."""
    book = OrderBook(RunFolder(tmp_path))
    heard = Orders(order=GOOD, epoch=5, frozen=True)
    assert book.pick(heard, generation, attempt=3, step=100, launched=4, relaunched=True) is None
