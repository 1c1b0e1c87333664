"""The order call: what a run is asked to do, at once when there is something."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.api.conftest import Served
from tests.api.test_jobs import put_order
from tests.builders import messages
from tests.daemon.waiting import wait_for
from wattmesh.controller.journal.database import identity
from wattmesh.reconfig.wire.messages import Orders

TARGET = f"/v1/runs/{messages.RUN}/order"


def test_no_order_is_an_answer(served: Served) -> None:
    """Without an order it says none, with epoch and mode, and is read by the hook's own type."""
    served.register()
    found = served.get(TARGET)
    assert Orders.from_json(found.body) == Orders(epoch=1, mode="act")


def test_an_open_order_is_given_at_once(served: Served) -> None:
    """The journal's open switch row is the order, with its ranks and its layout."""
    served.register()
    put_order(served)
    began = time.monotonic()
    order = Orders.from_json(served.get(f"{TARGET}?wait=30").body).order
    assert time.monotonic() - began < 25
    assert order is not None
    assert (order.switch_id, order.point, order.ranks, order.layout) == (
        "plan-1",
        "B",
        (0, 1),
        messages.B,
    )
    assert order.journal == identity.read(served.journal.database).journal != ""


def test_a_known_order_is_waited_past(served: Served) -> None:
    """A run that names the plan it knows waits for another one."""
    served.register()
    put_order(served)
    began = time.monotonic()
    found = served.get(f"{TARGET}?wait=0.3&plan=plan-1")
    assert found.body["order"]["plan"] == "plan-1"
    assert time.monotonic() - began >= 0.3


def test_a_waiting_run_hears_of_an_order_at_once(served: Served) -> None:
    """Twenty waiting runs hold no thread of the server, and all hear the bell."""
    served.register()
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(served.get, f"{TARGET}?wait=50") for _ in range(20)]
        # All four worker threads are free while twenty wait.
        for _ in range(8):
            assert served.get("/v1/status").status == 200
        put_order(served)
        began = time.monotonic()
        served.changes.ring()
        plans = [each.result(30).body["order"]["plan"] for each in waiting]
    assert plans == ["plan-1"] * 20
    assert time.monotonic() - began < 45


def test_a_frozen_run_is_told(served: Served) -> None:
    """The hook learns that it is frozen, itself or with everything."""
    served.register()
    served.post("/v1/freeze", {"run": "llama-8b", "reason": "debugging"})
    assert served.get(TARGET).body["frozen"] is True
    served.post("/v1/thaw", {"run": "llama-8b"})
    assert served.get(TARGET).body["frozen"] is False
    served.post("/v1/freeze", {"reason": "maintenance"})
    assert served.get(TARGET).body["frozen"] is True


def test_without_a_journal_there_is_no_order(served: Served) -> None:
    """While the database is gone a run is told "none", not an error: it trains on."""
    served.register()
    put_order(served)
    (served.folder / "journal.db").rename(served.folder / "taken.db")
    found = served.get(TARGET)
    assert found.status == 200
    assert found.body["order"] is None
    (served.folder / "taken.db").rename(served.folder / "journal.db")
    assert served.get(TARGET).body["order"]["plan"] == "plan-1"


def test_no_order_is_answered_from_memory_until_the_bell_rings(served: Served) -> None:
    """Asking again costs the journal nothing; an order that is put with a ring is given at once."""
    served.register()
    assert served.get(TARGET).body["order"] is None
    put_order(served)
    assert served.get(TARGET).body["order"] is None
    served.changes.ring()
    assert served.get(TARGET).body["order"]["plan"] == "plan-1"


def test_a_standby_looks_each_time(served: Served) -> None:
    """The leader's bell is not heard in another process, so nothing is remembered there."""
    served.register()
    served.loop_facts.lead = replace(served.loop_facts.lead, epoch=None)
    assert served.get(TARGET).body["order"] is None
    put_order(served)
    assert served.get(TARGET).body["order"]["plan"] == "plan-1"


def test_a_waiting_call_at_a_standby_sees_what_the_leader_ordered(served: Served) -> None:
    """Without a signal, and long before the wait is over."""
    served.register()
    served.loop_facts.lead = replace(served.loop_facts.lead, epoch=None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.get, f"{TARGET}?wait=60")
        wait_for(lambda: served.changes._waiters, "the call to wait")
        put_order(served)
        assert waiting.result(50.0).body["order"]["plan"] == "plan-1"


def test_a_wait_beyond_reason_is_refused(served: Served) -> None:
    """A run may wait a minute at most."""
    served.register()
    found = served.get(f"{TARGET}?wait=3600")
    assert found.status == 422
    assert "between 0 and 60" in found.body["error"]
