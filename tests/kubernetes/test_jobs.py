"""Runs on the cluster: another size, sleep and alarm, what people do, and kills at every step."""

import json
import os
import signal
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.waiting import wait_for
from tests.hook.unix_http import UnixHttp
from tests.hosts.run_on_hosts import JOB
from tests.kubernetes.api_server import Trouble
from tests.kubernetes.cluster import Cluster, rendered
from wattmesh.integrations.kubernetes.__main__ import _parser
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.asleep import AsleepNote
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.launch_book import BookedState, LaunchBook, Records
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Order, Orders, SwitchMode

GROW = {"do": "resize", "ranks": 2, "key": "plan-1"}
UNWANTED = {**GROW, "then": "failed"}
WITH_WAY_BACK = {**GROW, "back_s": 3600.0}
DONE = {"do": "done"}
HOUR_S = 3600


class Orderly(UnixHttp):
    """A daemon that has one order, and answers nothing else."""

    def __init__(self, where: Path, order: Order) -> None:
        """Serve at a path."""
        self._told = json.dumps(Orders(order=order, epoch=1, mode="act").to_json()).encode()
        super().__init__(where)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer one call."""
        return 200, self._told


class Paper:
    """One run of paper ranks."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *lines: dict[str, Any],
        kind: str = "JobSet",
        hosts: int = 1,
    ) -> None:
        """Plan what each launch does; `apply` starts the first."""
        self.cluster, self.name = cluster, name
        self.out = cluster.folder / name
        self.out.mkdir()
        self.folder = RunFolder(self.out / "run")
        plan = self.out / "plan.json"
        plan.write_text(json.dumps({"folder": str(self.folder.path), "lines": lines}))
        self.job = rendered(name, self.folder.path, str(JOB), str(plan), kind=kind, hosts=hosts)

    def apply(self) -> None:
        """Create the job, as its user does."""
        self.cluster.apply(self.job)

    def env(self, **added: str) -> None:
        """Add to the environment of this run's pods."""
        spec = self.job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        spec["containers"][0]["env"] += [
            {"name": name, "value": value} for name, value in added.items()
        ]

    def launches(self) -> list[dict[str, Any]]:
        """The launches, in order."""
        path = self.out / "told.jsonl"
        lines = path.read_text().splitlines() if path.exists() else ()
        return [each for each in map(json.loads, lines) if "do" in each]

    def book(self) -> Records:
        """The launch book."""
        return LaunchBook(self.folder).read()

    def jobs(self) -> dict[str, str]:
        """What has become of this run's jobs, by name."""
        known = self.cluster.states().items()
        return {name: state for name, state in known if name.startswith(self.name)}

    def follower(self) -> str:
        """The name of the only job that follows the first."""
        (found,) = (each for each in self.jobs() if each != self.name)
        return found

    def mark(self, name: str) -> None:
        """Let a launch go on that waits for a mark."""
        (self.out / name).touch()

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait; what is known is told on failure."""
        try:
            wait_for(condition, what, limit_s=120.0)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.where()}") from error

    def wait_done(self) -> None:
        """Wait until the run is finished and no job of it is left that could begin."""

        def over() -> bool:
            ends = [each in ("Completed", "gone") for each in self.jobs().values()]
            return all(ends) and bool(self.launches()) and self.launches()[-1]["do"] == "done"

        self.wait(over, "the end")

    def where(self) -> str:
        """What is known, for who reads a failure."""
        book = "\n".join(map(str, self.book()))
        return f"{self.launches()}\n{book}\n{self.cluster.states()}\n{self.cluster.said()}"


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
def test_a_run_goes_on_in_another_size_as_another_job(cluster: Cluster, kind: str) -> None:
    """The larger job is there, suspended, before the smaller one leaves; then it begins."""
    run = Paper(cluster, "grow", {**GROW, "linger": "go"}, DONE, kind=kind)
    run.apply()
    run.wait(lambda: [each.state for each in run.book()][-1:] == ["held"], "that it is held")
    assert run.jobs()["grow"] == "live"
    held = cluster.objects(f"{kind.lower()}s")[run.book()[-1].jobs[0].partition("/")[2]]
    assert held["spec"]["suspend"] is True
    assert len(run.launches()) == 1
    run.mark("go")
    run.wait_done()
    assert [each["ranks"] for each in run.launches()] == [1, 2], run.where()
    assert [each.state for each in run.book()] == [BookedState.BEGUN] * 2


def test_a_run_that_sleeps_is_woken_by_the_clusters_own_alarm(cluster: Cluster) -> None:
    """Asleep it has no pod, and a CronJob for the minute before; what woke it is deleted."""
    run = Paper(cluster, "doze", {"do": "suspend", "for_s": HOUR_S, "key": "plan-1"}, DONE)
    run.apply()
    run.wait(lambda: run.jobs().get("doze") == "Completed", "that it sleeps")
    held = run.follower()
    assert run.jobs()[held] == "suspended"
    alarm = cluster.objects("cronjobs")[f"{held}-wake"]
    begins = run.book()[-1].begins_at
    assert begins is not None
    minute = datetime.fromisoformat(begins)
    assert alarm["spec"]["schedule"].split()[:2] == [str(minute.minute), str(minute.hour)]
    cluster.ring(f"{held}-wake")
    run.wait_done()
    assert [each["do"] for each in run.launches()] == ["suspend", "done"]
    run.wait(lambda: cluster.objects("cronjobs") == {}, "that its alarm is gone")


def test_a_run_that_sleeps_is_woken_by_an_order_in_another_size(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its user's `wake` makes a job of that size from the held one, which is withdrawn.

    The job that fell asleep has been deleted meanwhile, as its time to live has it. A server that
    fails once costs nothing, though an order is taken once: who watches asks again.
    """
    run = Paper(cluster, "large", {"do": "suspend", "for_s": HOUR_S, "key": "plan-1"}, DONE)
    run.apply()
    run.wait(lambda: run.jobs().get("large") == "Completed", "that it sleeps")
    held = run.follower()
    cluster.delete("jobsets", "large")
    note = asleep.read(run.folder.asleep_file, AsleepNote)
    assert note is not None
    order = Order(
        switch_id="plan-2",
        epoch=1,
        run=note.run,
        attempt=note.attempt,
        point="two",
        layout=Layout(dp_shard=2),
        ranks=(0, 1),
        not_before_step=0,
        valid_until_step=100,
        mode=SwitchMode.RESUME,
        reason="the test asks for it",
    )
    cluster.server.troubles = [Trouble(how=500, verb="patch")]
    with tempfile.TemporaryDirectory(prefix="wm") as near, Orderly(Path(near) / "d", order):
        told = cluster.command(
            *("wake", "--watch", "--nproc=1", f"--checkpoint-dir={run.folder.path}"),
            WATTMESH_URL=f"unix://{near}/d",
        )
    assert "the run is woken: the test asks for it" in told
    assert "not answered yet" in told
    run.wait_done()
    assert [each["ranks"] for each in run.launches()] == [1, 2], run.where()
    run.wait(lambda: held not in run.jobs(), "that the held job is deleted")
    run.wait(lambda: cluster.objects("cronjobs") == {}, "that its alarm is deleted")


def test_a_sleep_too_short_for_an_alarm_is_refused_and_the_run_trains_on(cluster: Cluster) -> None:
    """The book withdraws it, and no job is left."""
    run = Paper(cluster, "short", {"do": "suspend", "for_s": 60, "key": "plan-1"}, DONE)
    run.apply()
    run.wait(lambda: run.jobs().get("short") == "Completed", "the end")
    assert run.jobs() == {"short": "Completed"}
    assert "an alarm on Kubernetes needs longer" in (run.out / "told.jsonl").read_text()


def test_a_server_whose_clock_is_behind_rings_no_later(cluster: Cluster) -> None:
    """The alarm is set by the server's clock where that one is behind ours."""
    cluster.server.behind_s = 600.0
    run = Paper(cluster, "late", {"do": "suspend", "for_s": HOUR_S, "key": "plan-1"}, DONE)
    run.apply()
    run.wait(lambda: run.jobs().get("late") == "Completed", "that it sleeps")
    (alarm,) = cluster.objects("cronjobs").values()
    begins = run.book()[-1].begins_at
    assert begins is not None
    early = datetime.fromisoformat(begins) - timedelta(seconds=600)
    minute, hour, day, month = map(int, alarm["spec"]["schedule"].split()[:4])
    rings = early.replace(month=month, day=day, hour=hour, minute=minute, second=0, microsecond=0)
    assert timedelta() <= early - rings <= timedelta(minutes=1, seconds=5)


def test_a_second_job_of_a_run_that_trains_ends(cluster: Cluster) -> None:
    """Made by hand for the same folder, it waits for the first, which trains on, and ends."""
    run = Paper(cluster, "one", {"do": "done", "wait": "go"})
    run.apply()
    run.wait(run.launches, "the first launch")
    again = json.loads(json.dumps(run.job).replace('"name": "one"', '"name": "one-more"'))
    spec = again["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    spec["containers"][0]["env"].append({"name": "RIVAL_S", "value": "0.5"})
    cluster.apply(again)
    run.wait(lambda: run.jobs().get("one-more") == "Completed", "that the second one ends")
    assert run.jobs()["one"] == "live"
    run.mark("go")
    run.wait_done()
    assert len(run.launches()) == 1, run.where()


def test_a_stop_ends_the_job_and_a_lost_pod_does_not(cluster: Cluster) -> None:
    """A pod that is killed is replaced and the run goes on; `stop` ends all pods for good."""
    run = Paper(cluster, "stop", {"do": "stopped", "wait": "run/stop"}, hosts=2)
    run.apply()
    run.wait(run.launches, "the first launch")
    os.kill(cluster.pods("stop")[1], signal.SIGKILL)
    run.wait(lambda: len(run.launches()) == 2, "that it goes on")
    (run.folder.path / "stop").touch()
    run.wait(lambda: run.jobs()["stop"] == "Failed", "that it has stopped")
    run.wait(lambda: cluster.pods("stop") == {}, "that no pod is left")


def test_an_api_server_that_fails_meanwhile_loses_nothing(cluster: Cluster) -> None:
    """Put off, or answered too late: what took effect is found again, and the run moves."""
    run = Paper(cluster, "rough", GROW, DONE)
    run.apply()
    cluster.server.troubles = [
        Trouble(how=503, verb="create"),
        Trouble(how="lost", verb="create"),
        Trouble(how=500, verb="patch", times=2),
    ]
    run.wait_done()
    assert [each["ranks"] for each in run.launches()] == [1, 2], run.where()
    assert len(run.jobs()) == 2


def test_a_creation_that_never_took_effect_leaves_nothing(cluster: Cluster) -> None:
    """The job is told why, and trains on; the book lets no launch of that order begin any more."""
    run = Paper(cluster, "never", GROW)
    run.apply()
    cluster.server.troubles = [Trouble(how=500, verb="create")]
    run.wait(lambda: run.jobs()["never"] == "Completed", "the end")
    assert run.jobs() == {"never": "Completed"}
    assert '"problem": "POST' in (run.out / "told.jsonl").read_text()
    assert [each.state for each in run.book()][1:] == [BookedState.WITHDRAWN]


KILLS = (
    # The first job, while the larger one is held: book, server, book, answer, and as it leaves.
    *(f"{step}" for step in ("before:book:2", "after:book:2", "after:call:3")),
    *(f"{step}" for step in ("after:book:3", "after:answer:1", "before:call:6", "after:call:6")),
    # The larger one, as it begins.
    *(f"new:{step}" for step in ("before:book:1", "after:book:1", "after:share:1")),
)
WAYS_BACK = (
    # The way back is held with its alarm, and the ordered job is or is not; the first as it leaves.
    *(f"back:after:{step}" for step in ("call:3", "call:4", "answer:1", "call:8", "call:10")),
)
WITHDRAWALS = ("before:book:4", "after:book:4", "after:call:5")


def test_whatever_step_a_leader_is_killed_at_one_launch_trains_on(cluster: Cluster) -> None:
    """For each kill the run is finished once, by the old job or the new one, and nothing is left.

    All runs at once: most of it is waiting.
    """
    runs: dict[str, Paper] = {}
    for number, dies in enumerate((*KILLS, *WAYS_BACK, *WITHDRAWALS)):
        first = UNWANTED if dies in WITHDRAWALS else GROW
        first = WITH_WAY_BACK if dies in WAYS_BACK else first
        run = Paper(cluster, f"kill{number}x", first, DONE)
        run.env(DIES=dies.removeprefix("back:"), DIED=str(run.out / "died"))
        runs[dies] = run
    for run in runs.values():
        run.apply()
    for dies, run in runs.items():
        run.wait_done()
        assert (run.out / "died").exists(), f"{dies}: nobody died: {run.where()}"
        did = [each["do"] for each in run.launches()]
        assert "refused" not in did, f"{dies}: two at once: {run.where()}"
        states = {each.state for each in run.book()}
        assert states <= {BookedState.BEGUN, BookedState.WITHDRAWN}, f"{dies}: {run.where()}"
        attempts = [each["attempt"] for each in run.launches()]
        assert attempts == sorted(set(attempts)), f"{dies}: {run.where()}"
        alarms = [each for each in cluster.objects("cronjobs") if each.startswith(run.name)]
        assert alarms == [], f"{dies}: {run.where()}"


def test_what_people_delete_is_not_brought_back(cluster: Cluster) -> None:
    """The held job deleted before the run has left: it trains on; the run's own: it ends there."""
    run = Paper(cluster, "gone", {**GROW, "linger": "go"}, DONE)
    run.apply()
    run.wait(lambda: [each.state for each in run.book()][-1:] == ["held"], "that it is held")
    cluster.delete("jobsets", run.follower())
    run.mark("go")
    run.wait_done()
    assert [each["ranks"] for each in run.launches()] == [1, 1], run.where()
    assert run.jobs() == {"gone": "Completed"}


def test_the_commands_of_the_page_are_the_commands(tmp_path: Path) -> None:
    """docs/kubernetes.md names no option that is not there."""
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text("utf-8")
    commands = [
        line.partition("python -m wattmesh.integrations.kubernetes ")[2]
        for line in page.replace("\\\n", " ").splitlines()
        if "python -m wattmesh.integrations.kubernetes " in line
    ]
    assert len(commands) >= 4
    for each in commands:
        words = each.partition(">")[0].partition("|")[0].split()
        assert _parser().parse_args(words)
