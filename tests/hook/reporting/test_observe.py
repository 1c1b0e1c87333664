"""`wattmesh.observe` in plain scripts, before the real daemon and fake GPUs."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.daemon import waiting
from tests.daemon.process import DaemonProcess, daemon
from tests.hook.daemon import FakeDaemon
from tests.hook.harness import Zygote
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, Equivalence, Evidence, OperatingPoint
from wattmesh.reconfig.gpus.own_gpus import OwnGpus
from wattmesh.reconfig.hook import observed
from wattmesh.reconfig.hook.observed import ObservedRun, PerStep
from wattmesh.reconfig.launch.launched import LaunchedProcess
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import Spent
from wattmesh.telemetry.fake_nvml import FakeNvml

TRACE = (
    "zone,timestamp_utc,carbon_intensity_gco2eq_per_kwh,kind,emission_factor_type\n"
    + "\n".join(
        f"GB,2023-06-14T00:{at // 60:02d}:{at % 60:02d}Z,{150 + at % 60},average,direct"
        for at in range(0, 3600, 10)
    )
)
"""Short intervals, for grams are booked ten times in each."""

SETTINGS = """\
[power]
source = "nvml"
library = "{folder}/gpus/libnvidia-ml.so.1"
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "{folder}/trace.csv"
plays_at = {now}
[runs.train]
catalogue = "{folder}/catalogue.toml"
baseline = "A"
"""

BARE = """\
import json, os, pathlib, random, sys, time
random.seed(7)
from wattmesh.telemetry.fake_nvml import FakeNvml

out, gpu = pathlib.Path(sys.argv[1]), int(os.environ.get("LOCAL_RANK", sys.argv[3]))
with FakeNvml(pathlib.Path(sys.argv[2])).gpu(gpu).busy():
    while not (out / "stop").exists():
        time.sleep(0.02)
        # REPORT
if (out / "raise").exists():
    raise ValueError("the data ended")
print("trained", random.random())
"""

SCRIPT = BARE.replace(
    "out, gpu =", 'import wattmesh\nLOOK\nrun, steps = wattmesh.observe("train"), 0\nout, gpu =', 1
).replace(
    "# REPORT",
    """run.report(tokens=512, loss=1.0)
        names = ("run", "energy_j", "carbon_g", "energy_per_step_j", "carbon_per_step_g")
        told = {each: getattr(run, each) for each in (*names, "flags", "why_unknown")}
        told["steps"] = steps = steps + 1
        (out / f"new-{gpu}").write_text(json.dumps(told))
        (out / f"new-{gpu}").replace(out / f"told-{gpu}")""",
)
"""The same with two lines more, and what it is told written down."""

wait_for = partial(waiting.wait_for, limit_s=60.0)

EAGER = """\
from wattmesh.reconfig.hook import observed
observed.FIRST_LOOK_S = observed.LATER_LOOK_S = 0.3
"""


@dataclass(slots=True)
class Site:
    """A daemon and two GPUs."""

    folder: Path
    gpus: FakeNvml
    daemon: DaemonProcess
    again: Callable[[], DaemonProcess] = field(init=False)

    def run(self, run: str) -> dict[str, Any]:
        """One run as the screens have it."""
        body: dict[str, Any] = self.daemon.get(f"/v1/runs/{run}").body
        return body

    def budget(self, run: str) -> dict[str, Any]:
        """One run as the budget has it."""
        runs = self.daemon.get("/v1/budget").body["runs"]
        return next(each for each in runs if each["run"] == run)

    def named(self, run: str) -> list[str]:
        """The GPUs that a run named."""
        with sqlite3.connect(f"file:{self.folder}/journal.db?mode=ro", uri=True) as journal:
            (row,) = journal.execute("select gpus from runs where run = ?", (run,))
        gpus: list[str] = json.loads(row[0])
        return gpus


class Job:
    """One launch of a script; it is gone afterwards."""

    def __init__(self, gpus: FakeNvml, out: Path) -> None:
        """Write nothing yet."""
        self.gpus, self.out = gpus, out
        out.mkdir(exist_ok=True)

    def start(self, text: str, *, gpu: int = 0, **more: str) -> None:
        """Start a script that computes on a GPU."""
        script = self.out / "train.py"
        script.write_text(text)
        with (self.out / "out").open("wb") as said, (self.out / "err").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(self.out), str(self.gpus.folder), str(gpu)],
                env={**self.gpus.environment(), **more},
                stdout=said,
                stderr=log,
            )

    def told(self, gpu: int = 0) -> dict[str, Any]:
        """What the script was told last."""
        path = self.out / f"told-{gpu}"
        said: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return said

    def measured(self) -> bool:
        """Whether it was told what a step draws."""
        return bool(self.told().get("energy_per_step_j"))

    def end(self, *, clean: bool = True) -> int:
        """Let the script come to its end; give its exit status."""
        if not clean:
            (self.out / "raise").touch()
        (self.out / "stop").touch()
        return self.process.wait(60)

    @property
    def output(self) -> tuple[str, str]:
        """What it wrote to stdout and to stderr."""
        return (self.out / "out").read_text(), (self.out / "err").read_text()


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    """Two GPUs."""
    return FakeNvml.create(tmp_path_factory.mktemp("observe") / "gpus", 2)


@pytest.fixture(scope="module")
def site(gpus: FakeNvml, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A daemon that acts, reads the GPUs, and has a catalogue for runs of the name."""
    folder = gpus.folder.parent
    (folder / "trace.csv").write_text(f"{TRACE}\n")
    points = tuple(
        OperatingPoint(
            id=name,
            layout=layout,
            gpus=1,
            tokens_per_s=400.0,
            power_w=power_w,
            equivalence=Equivalence.NUMERICAL,
            evidence=Evidence.VALIDATED,
        )
        for name, layout, power_w in (
            ("A", Layout(), 700.0),
            ("B", Layout(recompute=True), 100.0),
        )
    )
    catalogue = Catalogue(job="train", tokens_total=10**9, reference="A", points=points)
    catalogue_file.save(catalogue, folder / "catalogue.toml")
    with ExitStack() as stack:
        site = Site(folder, gpus, stack.enter_context(serving(folder)))
        # A test that ends the daemon begins another one.
        site.again = lambda: stack.enter_context(serving(folder))
        yield site


def serving(folder: Path) -> Any:
    """Run the daemon of the folder."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return daemon(folder, SETTINGS.format(folder=folder, now=now))


@pytest.fixture
def job(site: Site, tmp_path: Path) -> Iterator[Job]:
    """A launch beside the daemon."""
    job = Job(site.gpus, tmp_path / "out")
    yield job
    job.process.kill()
    job.process.wait(30)


def test_two_lines_put_a_plain_script_on_every_screen(site: Site, job: Job) -> None:
    """Its GPU is found, its joules and grams come back to it, and it outlives the daemon."""
    url = f"unix://{site.daemon.socket}"
    text = SCRIPT.replace("LOOK", EAGER)
    job.start(text, gpu=1, CUDA_VISIBLE_DEVICES="1", WATTMESH_URL=url)
    wait_for(lambda: job.told(1).get("energy_per_step_j"), "joules of a step")
    run, first_j = job.told(1)["run"], job.told(1)["energy_j"]
    assert first_j > 0
    assert "simulated" in job.told(1)["flags"]
    assert site.named(run) == [site.gpus.gpu(1).uuid]
    line = site.run(run)["run"]
    assert (line["name"], line["state"], line["activity"]) == ("train", "live", "observed")
    # It trains at no point, though the catalogue of its name has one of one rank: nothing to order.
    assert (line["layout"], line["point"], line["tokens"] > 0) == ("", "", True)
    assert "only observed" in line["sentence"]

    site.daemon.stop(9)
    steps = job.told(1)["steps"]
    wait_for(lambda: job.told(1)["steps"] > steps + 10, "steps without a daemon")
    wait_for(lambda: job.output[1], "the sentence that the daemon is missed")
    site.daemon = site.again()
    wait_for(lambda: job.told(1)["energy_j"] > first_j, "joules after the daemon's death")
    assert job.end() == 0
    said, log = job.output
    assert said.startswith("trained")
    assert len(log.splitlines()) == 2, log
    assert "answers again" in log.splitlines()[1]
    assert site.run(run)["finish_reason"] == "done"
    assert site.budget(run)["energy_j"] >= job.told(1)["energy_j"]


def test_what_slurm_gave_its_job_is_charged_to_it_used_or_not(site: Site, job: Job) -> None:
    """It computes on one of two GPUs: the joules of both are its own, and no other line's."""
    job.start(
        SCRIPT.replace("LOOK", EAGER),
        CUDA_VISIBLE_DEVICES="0",
        WATTMESH_URL=f"unix://{site.daemon.socket}",
        SLURM_JOB_ID="77",
        SLURM_JOB_NUM_NODES="1",
        SLURM_JOB_GPUS="0,1",
    )
    wait_for(lambda: job.told().get("run"), "the run")
    run, spare = job.told()["run"], site.gpus.gpu(1).uuid

    def charged() -> set[str]:
        with sqlite3.connect(f"file:{site.folder}/journal.db?mode=ro", uri=True) as journal:
            rows = journal.execute(
                "select gpu_uuid from energy where run = ? and line = 'run' and energy_mj > 0",
                (run,),
            )
            return {gpu for (gpu,) in rows}

    wait_for(lambda: spare in charged(), "joules of the GPU that nobody uses")
    assert site.named(run) == [site.gpus.gpu(0).uuid]
    wait_for(lambda: site.gpus.gpu(0).uuid in charged(), "joules of the other one")
    assert job.end() == 0


def test_a_launch_of_the_same_job_goes_on_with_its_run(site: Site, tmp_path: Path) -> None:
    """What failed is told as failed, and its joules stay with the run that goes on."""
    url, seen = f"unix://{site.daemon.socket}", []
    for number in ("0", "1"):
        job = Job(site.gpus, tmp_path / number)
        job.start(
            SCRIPT.replace("LOOK", EAGER),
            WATTMESH_URL=url,
            TORCHELASTIC_RUN_ID="job-7",
            TORCHELASTIC_RESTART_COUNT=number,
        )
        wait_for(job.measured, "joules of a step")
        assert job.end(clean=number == "1") == int(number == "0")
        seen.append((job.told(), site.run(job.told()["run"])))
    (first, failed), (second, done) = seen
    assert first["run"] == second["run"]
    assert second["energy_j"] > first["energy_j"]
    assert failed["finish_reason"] == "failed: ValueError('the data ended')"
    assert (done["finish_reason"], done["run"]["attempt"]) == ("done", 2)


def test_without_a_daemon_a_script_is_as_it_would_be_alone(gpus: FakeNvml, tmp_path: Path) -> None:
    """Its output and exit status are the same, also where it fails; one line of log is more."""
    dead, bad = "unix:///nowhere/w.sock", "http://head:1"
    two_more = SCRIPT.replace("LOOK", "")
    for clean, urls in {True: (dead, bad, ""), False: (dead,)}.items():
        seen = []
        for number, (text, url) in enumerate([(BARE, ""), *((two_more, url) for url in urls)]):
            job = Job(gpus, tmp_path / f"{clean}-{number}")
            job.start(text, WATTMESH_URL=url)
            status = job.end(clean=clean)
            said, err = job.output
            # Where in the file an error was raised differs by the lines that are more.
            seen.append((status, said, [each for each in err.splitlines() if each[:6] != "  File"]))
        bare = seen.pop(0)
        assert (bare[0], bare[1][:7]) == ((0, "trained") if clean else (1, ""))
        for status, said, log in seen:
            assert (status, said) == bare[:2]
            assert len([line for line in log if line not in bare[2]]) == 1, log


def test_two_ranks_of_one_launch_are_one_run_with_two_gpus(
    site: Site, zygote: Zygote, tmp_path: Path
) -> None:
    """Global rank 0 speaks, and learns of the other's GPU through the launcher's own store."""
    job = Job(site.gpus, tmp_path)
    environment = {
        "WATTMESH_URL": f"unix://{site.daemon.socket}",
        "SCRIPT": SCRIPT.replace("LOOK", EAGER),
        "LIBRARY": str(site.gpus.library),
        "OUT": str(tmp_path),
    }
    launch = zygote.start(2, environment, tmp_path, "tests.hook.reporting.observe_job:main")
    try:
        wait_for(job.measured, "joules of a step")
        run = job.told(0)["run"]
        assert job.told(1)["run"] == ""
        wait_for(lambda: site.named(run) == [gpu.uuid for gpu in site.gpus.gpus], "both GPUs")
        wait_for(lambda: job.told(0)["carbon_g"], "grams")
    finally:
        (tmp_path / "stop").touch()
    assert zygote.wait(launch) == 0
    (line,) = [each for each in site.daemon.status()["runs"] if each["run"] == run]
    assert (line["ranks"], line["state"]) == (2, "finished")
    assert "speaks for the run" in job.told(1)["why_unknown"]


def test_an_amount_per_step_is_told_over_times_in_which_it_grew() -> None:
    """Grams stand still for a minute while steps go on; that is no step without grams."""
    step = PerStep()
    told = []
    for steps, amount in [(0, None), (10, 5.0), (20, 5.0), (30, 9.0), (30, 10.0), (40, 8.0)]:
        step.note(steps, amount)
        told.append(step.mean)
    # The newest is of another journal, or a correction: from there on it is counted anew.
    assert told == [None, None, None, 0.2, 0.25, 0.25]


def test_an_amount_per_step_is_not_what_the_books_lag_behind() -> None:
    """Joules are booked in lumps, now with the newest steps and now without them."""
    step, told = PerStep(), []
    for answer in range(1, 21):
        booked = 50 * answer - (40 if answer % 2 else 0)
        step.note(50 * answer, 100.0 * booked)
        told.append(step.mean)
    assert all(90.0 < each < 110.0 for each in told[9:] if each is not None)
    assert told[-1] is not None


WORKERS = """\
import multiprocessing, sys
import wattmesh

run = wattmesh.observe("train")

def work(number):
    again = wattmesh.observe("train")
    again.report(tokens=1)
    return (again is run, again.run, again.why_unknown)

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(*pool.map(work, [1, 2]), sep="\\n")
"""


def test_workers_that_import_the_script_anew_are_no_runs_of_their_own(
    tmp_path: Path, socket_path: Path
) -> None:
    """A spawned loader's workers would register, and be lost when their pool ends them."""
    script = tmp_path / "train.py"
    script.write_text(WORKERS)
    with FakeDaemon(socket_path, tmp_path, []) as daemon:
        ran = subprocess.run(
            [sys.executable, str(script)],
            env={"WATTMESH_URL": f"unix://{socket_path}"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert len({each.run for each in daemon.heard.registers}) == 1
        assert [each.reason for each in daemon.heard.finishes] == ["done"]
    assert ran.stdout.splitlines() == [str((True, "", observed.SPAWNED))] * 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "done"),
        (SystemExit(), "done"),
        (SystemExit(0), "done"),
        (SystemExit(3), "failed: exit status 3"),
        (KeyboardInterrupt(), "stopped: Ctrl-C"),
        (KeyError("x"), "failed: KeyError('x')"),
    ],
)
def test_an_end_is_told_as_what_it_is(
    tmp_path: Path, socket_path: Path, error: BaseException | None, reason: str
) -> None:
    """As a context it sees the status that a script leaves with, too."""
    with FakeDaemon(socket_path, tmp_path, []) as daemon:
        run = ObservedRun("train", LaunchedProcess(), DaemonLink(str(socket_path)))
        run.start()
        wait_for(lambda: daemon.heard.registers, "an introduction")
        run.__exit__(type(error) if error else None, error, None)
        assert [each.reason for each in daemon.heard.finishes] == [reason]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is not set"),
        ("http://head:1", "not understood"),
        ("unix://h/x", "not understood"),
        ("https://[::1", "not understood"),
    ],
)
def test_a_run_without_a_daemon_says_why(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    """What is set and wrong is not called unset."""
    monkeypatch.setenv("WATTMESH_URL", url)
    with observed.observe("alone") as run:
        assert said in run.why_unknown


class Nameless:
    """An object that does not let itself be read."""

    def __str__(self) -> str:
        raise KeyError("no name")


@pytest.mark.parametrize(
    ("name", "job", "said"),
    [(Nameless(), "1", "KeyError('no name')"), ("odd", "\udcff", "has not answered yet")],
)
def test_whatever_it_meets_observe_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, socket_path: Path, name: Any, job: str, said: str
) -> None:
    """A job id may hold bytes that are no text; what cannot be observed says why, and reports."""
    monkeypatch.setenv("WATTMESH_URL", f"unix://{socket_path}")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    with observed.observe(name) as run:
        run.report(tokens=1)
        assert said in run.why_unknown


def test_figures_that_are_old_say_so(
    tmp_path: Path, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the daemon is away the last ones stay, and are not taken for those of now."""
    monkeypatch.setattr(observed, "FIRST_LOOK_S", 0.02)
    monkeypatch.setattr(observed, "LATER_LOOK_S", 0.02)
    monkeypatch.setattr(observed, "own_gpus", lambda: OwnGpus(uuids=("GPU-1",)))
    run = ObservedRun("train", LaunchedProcess(), DaemonLink(str(socket_path)))
    with Forgetful(socket_path, tmp_path, []) as daemon:
        daemon.knows_from = 0
        run.start()
        wait_for(lambda: run.energy_j == 7.0, "joules")
        assert run.why_unknown == ""
    monkeypatch.setattr(observed, "OLD_S", 0.05)
    wait_for(lambda: "s old" in run.why_unknown, "their age")
    assert run.energy_j == 7.0
    run.close()


class Forgetful(FakeDaemon):
    """Tells what runs spent from so many introductions on."""

    knows_from = 1000

    def _take(self, call: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if call != "spent":
            return super()._take(call, body)
        if len(self.heard.registers) < self.knows_from:
            return 404, {"error": "there is no such run", "kind": "not_found"}
        return 200, Spent(energy_j=7.0, carbon_g=0.5).to_json()


def test_a_run_that_is_forgotten_introduces_itself_again(
    tmp_path: Path, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that was replaced learns of it though it never reports; an older daemon, once."""
    monkeypatch.setattr(observed, "FIRST_LOOK_S", 0.02)
    monkeypatch.setattr(observed, "LATER_LOOK_S", 0.02)
    monkeypatch.setattr(observed, "own_gpus", lambda: OwnGpus(uuids=("GPU-1",)))
    with Forgetful(socket_path, tmp_path, []) as daemon:
        run = ObservedRun("train", LaunchedProcess(), DaemonLink(str(socket_path)))
        run.start()
        wait_for(lambda: run.why_unknown.startswith("the daemon answered 404"), "a reason")
        daemon.knows_from = 0
        wait_for(lambda: run.energy_j == 7.0, "joules")
        assert (run.carbon_g, run.why_unknown) == (0.5, "")
        assert daemon.heard.registers[-1].gpus == ("GPU-1",)
        daemon.knows_from = len(daemon.heard.registers) + 1
        wait_for(lambda: len(daemon.heard.registers) == daemon.knows_from, "an introduction")
        odd = SimpleNamespace(detach=None)  # to call it raises
        for tokens, loss in ((512, 2.5), (odd, odd), ("many", [1.0]), (float("nan"), float("inf"))):
            run.report(tokens=tokens, samples=tokens, loss=loss)
        wait_for(lambda: [each.step for each in daemon.heard.progress][-1:] == [4], "progress")
        newest = daemon.heard.progress[-1]
        assert (newest.tokens, newest.samples, newest.loss) == (512, 512, None)
        run.close()
        assert [each.reason for each in daemon.heard.finishes] == ["done"]
