"""The leader vanishes in the middle of every state of a switch: who leads, what becomes of the job.

    python -m benchmarks.failover [--job real|told] [--json]

Two real daemons on one PostgreSQL, and one node whose agent knows both. A run is ordered from one
layout to the other; when it tells of a state, the leader is killed, cut off from the database
without a word, or stopped (and goes on later). Each row says after how many seconds the other one
leads, what became of the switch, and how often the old leader changed anything after that. The run
is a real one (two ranks, gloo) or, for the tests, one whose messages are told.
`loops.lease_s` is 2 (default 10); nothing was tuned on these figures.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.failover.site import LEASE_S, PATIENCE_S, Member, Site, site, until
from benchmarks.report import Goal, Report, run
from tests import postgresql
from tests.builders import messages
from tests.daemon.process import ask
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import FINAL, SwitchState
from wattmesh.reconfig.wire.messages import Order, Orders

BOTH, ONE = Layout(dp_replicate=2), Layout()
CATALOGUE = """\
[job]
name = "failover"
tokens_total = 1000000000000
reference = "A"
release = "parked"
[[point]]
id = "A"
gpus = 2
layout = { dp_replicate = 2 }
tokens_per_s = 1000
power_w = 1400
equivalence = "exact"
evidence = "validated"
[[point]]
id = "B"
gpus = 1
layout = {}
tokens_per_s = 600
power_w = 700
equivalence = "exact"
evidence = "validated"
"""
MORE = """\
[policy]
switch_timeout_s = 60
[runs.failover]
catalogue = "{folder}/failover.toml"
"""
IN_PLACE = tuple(
    SwitchState(each)
    for each in (
        *("ordered", "announced", "checkpointing", "rebuilding"),
        *("loaded", "verified", "confirmed"),
    )
)
DELIVERED = ("nodes", "node_devices", "node_counters", "run_nodes", "energy", "coverage")
"""Tables of what agents measured. A delivery whose last packet was under way when the network was
cut is committed when it heals: nobody acts by that, and a repeat of it counts once."""

STRIKES = ("killed", "cut off", "stopped")


class Job(Protocol):
    """A run that trains on and is moved."""

    def prepare(self, state: SwitchState) -> None:
        """Make the next switch one that comes to a state."""
        ...

    def step(self) -> int:
        """Give the newest step that was trained."""
        ...


class TrainingJob:
    """Two real ranks under their supervisor, which reach the daemons through the agent."""

    def __init__(self, here: Site) -> None:
        """Start them."""
        self._here = here
        assert here.agent is not None
        self._folder = here.folder / "job"
        self._folder.mkdir()
        command = [
            *(sys.executable, "-m", "wattmesh.integrations.torchrun", "--nproc", "2"),
            *("--checkpoint-dir", str(self._folder / "checkpoints"), "--"),
            *("-m", "benchmarks.failover.job", str(self._folder)),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment["WATTMESH_URL"] = f"unix://{here.agent.relay}"
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def prepare(self, state: SwitchState) -> None:
        """Let the next switch be rolled back, where the state is one of such a switch."""
        wrong = self._folder / "wrong"
        if state in (SwitchState.ROLLING_BACK, SwitchState.ROLLED_BACK):
            wrong.touch()
        else:
            wrong.unlink(missing_ok=True)

    def step(self) -> int:
        """Give the newest step that the journal has of it."""
        rows = self._here.rows("SELECT step FROM runs")
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        """End it: at its next boundary, or by force."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            try:
                self._process.wait(30.0)
            except subprocess.TimeoutExpired:
                continue
            return


class ToldJob:
    """A run whose messages are told through the agent, one after the other, as a hook does."""

    STATES = IN_PLACE[1:]

    def __init__(self, here: Site) -> None:
        """Introduce it."""
        assert here.agent is not None
        self._relay, self._step, self._plan = here.agent.relay, 0, ""
        self._layout = BOTH
        who = {"name": "failover", "layout": BOTH, "ranks": (0, 1), "world_size": 2}
        until(lambda: self._post("register", messages.register(**who, boundary_every=1)), "it")
        self.report()

    def prepare(self, state: SwitchState) -> None:
        """It can be moved in place only."""

    def step(self) -> int:
        """Give the newest step."""
        return self._step

    def report(self) -> None:
        """Train a step."""
        self._step += 1
        ranks = tuple(range(self._layout.world_size))
        told = messages.progress(
            seq=self._step, step=self._step, layout=self._layout, ranks=ranks, boundary_every=1000
        )
        self._post("progress", told)

    def follow(self) -> None:
        """Carry out an order, if there is one: tell each state until it is taken, in order."""
        order = self._order()
        if order is None or order.switch_id == self._plan:
            self.report()
            return
        self._plan = order.switch_id
        for state in self.STATES:
            said = messages.transition(order.switch_id, order.epoch, state, step=self._step)
            if state is SwitchState.CONFIRMED:
                said |= {"layout": order.layout.to_dict(), "ranks": list(order.ranks)}
            until(partial(self._post, "transitions", said), f"{state} to be taken")
        self._layout = order.layout
        self.report()

    def _order(self) -> Order | None:
        answer = ask(self._relay, "GET", f"/v1/runs/{messages.RUN}/order", timeout_s=PATIENCE_S)
        return Orders.from_json(answer.body).order if answer.status == 200 else None

    def _post(self, call: str, body: dict[str, Any]) -> bool:
        target = f"/v1/runs/{messages.RUN}/{call}"
        answer = ask(self._relay, "POST", target, body, timeout_s=PATIENCE_S)
        if answer.status not in (200, 503):
            raise AssertionError(f"{call}: {answer.status} {answer.body}")
        return answer.status == 200


def strike(here: Site, how: str, state: SwitchState, job: TrainingJob | ToldJob) -> dict[str, Any]:
    """Strike the leader in one state of a switch; give the row."""
    old = here.leader
    new = here.other(old)
    job.prepare(state)
    point = _other_point(here)
    struck: list[Any] = []

    def act() -> None:
        struck.append(here.now())
        _break(old, how)

    old.tap.strike = (state.value, act)
    _order(old, point)
    _wait(job, lambda: bool(struck), f"a switch to {point} that is {state}")
    led_at = until(lambda: here.led_since(new, struck[0]), "the other to lead")
    if how == "stopped":
        old.send(signal.SIGCONT)  # it does not know yet, and acts if nothing keeps it from it
    told = _wishes_of(old)
    query = "SELECT switch_id, state FROM switches ORDER BY created_at DESC, switch_id LIMIT 1"
    finals = {each.value for each in FINAL}
    _wait(job, lambda: here.rows(query)[0][1] in finals, "the end of the switch")
    step = job.step()
    _wait(job, lambda: job.step() > step, "the job to train on")
    _mend(old, how)
    stands_by = "Standing by"
    until(lambda: stands_by in old.sentence(), "the old leader to stand by")
    orders = here.rows("SELECT count(*) FROM switches WHERE to_point = %s", point)[0][0]
    acts = here.rows(
        "SELECT what, count(*) FROM written WHERE who = %s AND at > %s AND position(who in leader)"
        " = 0 GROUP BY what",
        old.name,
        led_at,
    )
    return {
        "strike": how,
        "state": state.value,
        "leads_after_s": round((led_at - struck[0]).total_seconds(), 2),
        "switch": here.rows(query)[0][1],
        "switches_so_far": orders,
        "acts_after_term": sum(count for what, count in acts if what not in DELIVERED),
        "late_deliveries": sum(count for what, count in acts if what in DELIVERED),
        "written": ", ".join(f"{what}: {count}" for what, count in acts),
        "wishes_after_term": told,
    }


def _break(old: Member, how: str) -> None:
    if how == "cut off":
        old.wire.cut()
    else:
        old.send(signal.SIGKILL if how == "killed" else signal.SIGSTOP)


def _mend(old: Member, how: str) -> None:
    """Bring the old leader back, as the standby."""
    if how == "killed":
        old.life.close()
        old.start()
    elif how == "cut off":
        old.wire.heal()


def _wishes_of(old: Member) -> int:
    """Ask the old leader for clocks and caps; count an answer that tells any."""
    try:
        answer = ask(old.socket, "GET", "/v1/agents/n1/desired", timeout_s=5.0)
    except OSError:
        return 0
    return int(answer.status == 200)


def _other_point(here: Site) -> str:
    query = "SELECT to_point FROM switches WHERE state = 'confirmed' ORDER BY created_at DESC"
    rows = here.rows(query)
    return "A" if rows and rows[0][0] == "B" else "B"


def _order(leader: Member, point: str) -> None:
    body = {"point": point, "reason": "the matrix"}

    def ordered() -> bool:
        ask(leader.socket, "POST", "/v1/thaw", {"run": "failover"})
        return ask(leader.socket, "POST", "/v1/runs/failover/switch", body).status == 200

    until(ordered, "an order to be taken")


def _wait(job: TrainingJob | ToldJob, condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds, while the run goes on."""

    def turned() -> bool:
        if isinstance(job, ToldJob):
            job.follow()
        return condition()

    until(turned, what)


@contextmanager
def standing(
    server: postgresql.Server, *, pooled: bool, real: bool, restarts: bool = False
) -> Iterator[tuple[Site, TrainingJob | ToldJob]]:
    """Bring the daemons, the node and the run up; whatever happens they are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="wm-fo-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "failover.toml").write_text(CATALOGUE)
        with site(folder, server, pooled=pooled, more=MORE.format(folder=folder)) as here:
            for each in here.members:
                each.tap.restarts = restarts
            if not real:
                yield here, ToldJob(here)
                return
            job = TrainingJob(here)
            try:
                until(lambda: job.step() > 0, "the job to train", 2 * PATIENCE_S)
                yield here, job
            finally:
                job.close()


def matrix(
    server: postgresql.Server,
    cases: list[tuple[str, SwitchState]],
    *,
    pooled: bool = False,
    real: bool = True,
    restarts: bool = False,
) -> Iterator[dict[str, Any]]:
    """Strike once for each case, one after the other; after a case without an end on a new site."""
    left, through = [*cases], "pgbouncer" if pooled else "PostgreSQL"
    while left:
        with standing(server, pooled=pooled, real=real, restarts=restarts) as (here, job):
            while left:
                how, state = left.pop(0)
                try:
                    row = strike(here, how, state, job)
                except TimeoutError as error:
                    yield {"through": through, "strike": how, "state": state.value} | _stuck(
                        here, error
                    )
                    break
                yield {"through": through, **row}


def _stuck(here: Site, error: TimeoutError) -> dict[str, Any]:
    """Say how things stood in a case that did not come to its end."""
    newest = "SELECT to_point, state, detail FROM switches ORDER BY created_at DESC LIMIT 2"
    run_row = "SELECT step, attempt, ordered_point, frozen FROM runs"
    stands = (here.rows(newest), here.rows(run_row), here.rows("SELECT * FROM leadership"))
    log = here.folder / "job" / "log"
    said = log.read_text()[-1000:] if log.exists() else ""
    return {
        "leads_after_s": None,
        "switch": "no end",
        "acts_after_term": 0,
        "wishes_after_term": 0,
        "trouble": f"{error}; {stands}; {said}",
    }


ROLLED_BACK = [("killed", SwitchState.ROLLING_BACK), ("cut off", SwitchState.ROLLED_BACK)]
BY_RESTART = [("killed", SwitchState.STOPPING), ("killed", SwitchState.LAUNCHING)]
POOLED = [("killed", SwitchState.REBUILDING), ("cut off", SwitchState.LOADED)]


def measure(chosen: argparse.Namespace) -> Report:
    """Run the whole matrix."""
    programs = postgresql.find_programs()
    if programs is None:
        raise SystemExit(f"failover: {postgresql.MISSING}")
    real = chosen.job == "real"
    cases = [(how, state) for how in STRIKES for state in IN_PLACE]
    rows: list[dict[str, Any]] = []

    def told(some: Iterator[dict[str, Any]]) -> None:
        for row in some:
            print(row, file=sys.stderr, flush=True)
            rows.append(row)

    with postgresql.running(programs) as server:
        told(matrix(server, cases + (ROLLED_BACK if real else []), real=real))
        told(matrix(server, POOLED, pooled=True, real=real))
        if real:
            told(matrix(server, BY_RESTART, restarts=True))
    for row in rows:
        row["lease_s"] = LEASE_S
        row["job"] = chosen.job
    return Report(benchmark="failover", rows=tuple(rows), goals=goals(rows))


def goals(rows: list[dict[str, Any]]) -> tuple[Goal, ...]:
    """Judge the rows."""
    well = ("confirmed", "rolled_back")  # or never begun: the order had not reached the run
    ended = sum(
        row["switch"] in well or (row["state"], row["switch"]) == ("ordered", "abandoned")
        for row in rows
    )
    return (
        Goal(
            name="acts_after_term", value=sum(r["acts_after_term"] for r in rows), goal=0, op="=="
        ),
        Goal(
            name="wishes_after_term",
            value=sum(r["wishes_after_term"] for r in rows),
            goal=0,
            op="==",
        ),
        Goal(
            name="worst_leads_after_leases",
            value=max(r["leads_after_s"] or 0.0 for r in rows) / LEASE_S,
            goal=2.0,
            op="<=",
        ),
        Goal(name="switches_ended_well", value=ended / len(rows), goal=1.0, op="=="),
    )


if __name__ == "__main__":
    sys.exit(run(measure, {"job": "real"}))
