"""A power cap from the order to the board: daemon, agent and actuator, each its own process."""

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.agent.test_clock_path import Site, site
from tests.daemon.process import daemon
from tests.daemon.waiting import wait_for

FOUND_W = 700.0


def limits(here: Site) -> list[float]:
    """What the boards themselves are limited to, in watts."""
    return [gpu.truth().requested_limit_w for gpu in here.node.gpus.gpus]


def order(here: Site, cap_w: float, lasts_s: float) -> datetime:
    """Order a cap that ends after a while, once the daemon has heard of an actuator."""
    until = datetime.now(UTC)

    def taken() -> bool:
        nonlocal until
        until = datetime.now(UTC) + timedelta(seconds=lasts_s)
        body = {"cap_w": cap_w, "until": until.isoformat(), "reason": "the grid operator asks"}
        return here.daemon.post("/v1/powercap", body).status == 200

    wait_for(taken, "an order that is taken", 30.0)
    return until


def wait_capped(here: Site, cap_w: float) -> None:
    """Wait until the boards themselves cannot draw more than the cap."""
    wait_for(lambda: sum(limits(here)) <= cap_w, f"limits of {cap_w} W together", 30.0)


def test_a_cap_reaches_the_boards_outlives_the_controller_and_ends_by_itself(
    tmp_path: Path,
) -> None:
    """Limits and the run's slower clock at once; nobody is needed to keep them, nor to end them."""
    with site(tmp_path) as here:
        assert sum(limits(here)) == 2 * FOUND_W
        until = order(here, 1000.0, 15.0)
        wait_capped(here, 1000.0)
        here.wait_locks(1200, reporting=False)  # point S of the run's own layout
        here.daemon.stop(signal.SIGKILL)
        here.node.end(signal.SIGKILL)

        def nearly_over() -> bool:
            assert sum(limits(here)) <= 1000.0
            return datetime.now(UTC) >= until - timedelta(seconds=2)

        wait_for(nearly_over, "the last seconds of the order")
        wait_for(lambda: limits(here) == [FOUND_W] * 2, "the limits that were found", 40.0)
        assert here.node.locks() == {None}


def test_status_and_why_tell_of_the_cap_and_its_end_gives_the_boards_back(tmp_path: Path) -> None:
    """What it costs whom is said; a controller that comes anew keeps it; ending it is one call."""
    with site(tmp_path) as here:
        order(here, 1000.0, 600.0)
        wait_capped(here, 1000.0)

        def shown() -> bool:
            here.report()
            cap = here.daemon.status()["cap"]
            return bool(cap and cap["slowed"])

        wait_for(shown, "the cap in status", 30.0)
        cap = here.daemon.status()["cap"]
        assert cap["meets"]
        assert cap["bound_w"] <= 1000.0
        assert cap["slowed"] == {"llama-8b": "A"}
        why = here.daemon.get("/v1/runs/llama-8b/why").body
        assert "holds it at S instead of A" in str(why)
        here.daemon.stop(signal.SIGKILL)
        with daemon(tmp_path, text=here.daemon.settings.read_text()) as again:
            here.daemon = again
            wait_for(lambda: bool(again.status()["cap"]), "the cap after a restart", 30.0)
            assert sum(limits(here)) <= 1000.0
            assert again.post("/v1/powercap/end", {}).status == 200
            wait_for(lambda: limits(here) == [FOUND_W] * 2, "the limits that were found", 40.0)
            assert again.status()["cap"] is None
