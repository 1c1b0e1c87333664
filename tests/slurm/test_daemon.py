"""A real daemon moves a training on a real Slurm: by its policy, by order, asleep, and killed."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tests.builders.points import catalogue, point
from tests.cli.test_real_daemon import HEAD, ROWS
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from tests.hook.harness import DP2, DP2_TP2, DP4, worst_difference
from tests.slurm.cluster import Cluster
from tests.slurm.jobs.training import PATIENCE_S, Training
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import PAUSED, Release, SwitchCost
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import SwitchMode

SLEEP_S = 30
SETTINGS = """
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "{folder}/trace.csv"
plays_at = {now}
[policy]
longest_sleep_s = {sleep_s}
[runs.tiny]
catalogue = "{folder}/catalogue.toml"
baseline = "wide"
deadline_after_s = 864000
"""


def write_site(folder: Path) -> str:
    """Write the grid and a catalogue of two sizes; gives further settings."""
    (folder / "trace.csv").write_text(f"{HEAD}\n{ROWS}\n")
    job = catalogue(
        point("wide", DP4, 400.0, 1600.0),
        point("mixed", DP2_TP2, 390.0, 1600.0),
        point("small", DP2, 300.0, 300.0),
        job="tiny",
        tokens_total=10**6,
        release=Release.RELEASED,
        switch=SwitchCost(layout_s=0.1, layout_energy_j=1.0, source="measured", reacquire_s=0.0),
        global_batch=8,
        seq_len=16,
    )
    catalogue_file.save(job, folder / "catalogue.toml")
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return SETTINGS.format(folder=folder, now=now, sleep_s=SLEEP_S)


class Moved(Protocol):
    """A training that can say what is known of it."""

    def where(self) -> str:
        """For who reads a failure."""
        ...


class Site:
    """A daemon and the training that it moves."""

    def __init__(self, served: DaemonProcess, moved: Moved) -> None:
        """Take both."""
        self.served, self.moved = served, moved

    def run(self) -> dict[str, Any]:
        """The run as the daemon shows it; empty while there is none."""
        return next(iter(self.served.status()["runs"]), {})

    def wait_begun(self, point: str) -> None:
        """Wait until the run has told that it carries out its order to a point."""

        def begun() -> bool:
            shown = self.run()
            switch = shown["switch"]
            ordered = switch is not None and switch["to_point"] == point
            return shown["point"] == point or (ordered and switch["state"] != "ordered")

        self.wait(begun, f"a switch to {point} that begins")

    def wait_at(self, point: str, state: str = "live") -> None:
        """Wait until the run is at a point, or away from it in a state, and in no switch."""

        def there() -> bool:
            shown = self.run()
            return (shown["point"], shown["state"], shown["switch"]) == (point, state, None)

        self.wait(there, f"{state} at {point}")

    def wait(self, condition: Any, what: str) -> None:
        """Wait, and say what is known where it does not happen."""
        try:
            wait_for(condition, what, PATIENCE_S)
        except AssertionError as error:
            known = f"{self.run()}\n{self.served.log[-4000:]}\n{self.moved.where()}"
            raise AssertionError(f"{error}\n{known}") from error

    def order(self, point: str) -> None:
        """Order the run to a point, as `wattmesh switch` does."""
        answer = self.served.post(
            f"/v1/runs/{self.run()['run']}/switch", {"point": point, "reason": "the test"}
        )
        assert answer.status == 200, answer.body


def test_a_daemon_moves_a_training_between_sizes_and_through_a_sleep_it_does_not_see(
    slurm: Cluster, tmp_path: Path, places: Path, ranks: Path, undisturbed: Mapping[int, float]
) -> None:
    """Its policy gives two of four GPUs back, an order takes them again in another layout.

    The daemon is killed before the run leaves for that, and the next one once the run sleeps: Slurm
    starts it in its size and wakes it by its alarm, each new daemon hears all that happened, and
    the losses are those of a run that never moved.
    """
    more = write_site(places)
    moved = Training(
        slurm,
        tmp_path / "moved",
        ranks,
        places / "w.sock",
        wait_for={"40": "go"},
        orders_by={"10": 1, "20": 2, "30": 3},
    )
    with daemon(places, more) as served:
        site = Site(served, moved)
        moved.submit()
        site.wait(lambda: site.run().get("point") == "wide", "that it trains")
        site.wait_at("small")
        site.order("mixed")
        site.wait_begun("mixed")
        served.process.kill()
    wait_for(lambda: max(moved.losses()) >= 29, "that it trains in the other size", PATIENCE_S)
    with daemon(places, more) as served:
        site = Site(served, moved)
        site.wait_at("mixed")
        site.order(PAUSED)
        site.wait_at("mixed", "asleep")
        served.process.kill()
    wait_for(lambda: max(moved.losses()) >= 39, "that its alarm wakes it", PATIENCE_S)
    with daemon(places, more) as served:
        site = Site(served, moved)
        site.wait_at("mixed")
        moved.mark("go")
        moved.wait_until()
        site.wait(lambda: site.run().get("state", "finished") == "finished", "its end")
    assert worst_difference(moved.losses(), undisturbed) <= 1e-5
    judge(places)


def judge(places: Path) -> None:
    """Read what the journal says of it all."""
    journal = Journal.open(f"sqlite:///{places}/journal.db")
    try:
        (row,) = journal.runs.all(datetime.now(UTC))
        assert (row.finish_reason, row.attempt, row.frozen, row.outage_from) == (
            "done",
            4,
            "",
            None,
        )
        history = journal.switches.history(row.run)
        assert [
            (each.from_point, each.to_point, each.order.mode, each.requested_by, each.state)
            for each in reversed(history)
        ] == [
            ("wide", "small", SwitchMode.RESIZE, "policy", SwitchState.CONFIRMED),
            ("small", "mixed", SwitchMode.RESIZE, "operator", SwitchState.CONFIRMED),
            ("mixed", PAUSED, SwitchMode.SUSPEND, "operator", SwitchState.CONFIRMED),
        ]
        launches = journal.stays.launches(row.run)
        assert [(each.ours, each.gave_back) for each in launches[:3]] == [(True, True)] * 3
    finally:
        journal.close()
