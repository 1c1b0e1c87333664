"""Runs inside, as a service of the booted systemd: every finding, one after the other.

Head node and GPU node are one here. The GPUs and their NVML library are fake; the devices have no
driver. What is shortened for the check says so in its finding.
"""

import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from scripts.systemd_root.findings import Findings
from scripts.systemd_root.manager import (
    log,
    pid_of,
    probed,
    restarts,
    said,
    shown,
    status_of,
    timed,
    wait_for,
)
from wattmesh.telemetry.fake_nvml import FakeNvml

OUT = Path("/out")
DAEMON, AGENT, ACTUATOR = "wattmesh", "wattmesh-agent", "wattmesh-actuator"
SERVICES = (DAEMON, ACTUATOR, AGENT)
STEPS = Path("/run/job/steps")
SLOW_MHZ = 1200
KEPT = 1 << 0 | 1 << 2 | 1 << 19 | 1 << 21
"""CAP_CHOWN, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_ADMIN."""
BADNESS = ("Traceback", "not permitted", "bug in", "Failed to set up")


class Site:
    """The services, the GPUs and the dummy job, and what was found of them."""

    def __init__(self, findings: Findings) -> None:
        """Open the GPUs."""
        self.add = findings.add
        self.gpus = FakeNvml.open(Path("/dev/gpus"))

    def locks(self) -> set[int | None]:
        """Read the clocks that the boards are locked to."""
        return {gpu.truth().lock_mhz for gpu in self.gpus.gpus}

    @contextmanager
    def watched(self) -> Iterator[list[tuple[float, set[int | None]]]]:
        """Write down every change of a lock while the block runs, looked at each 20 ms."""
        seen: list[tuple[float, set[int | None]]] = [(0.0, self.locks())]
        over, began_s = threading.Event(), time.monotonic()

        def look() -> None:
            while not over.wait(0.02):
                now = self.locks()
                if now != seen[-1][1]:
                    seen.append((time.monotonic() - began_s, now))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield seen
        finally:
            over.set()
            watcher.join()

    # Starting

    def start(self) -> None:
        """All three become ready, the agent by the token that is its credential."""
        took = {DAEMON: timed("systemctl", "start", DAEMON)}
        token = json.loads(said("wattmesh", "nodes", "token", "make", "n1", "--json"))["token"]
        path = Path("/etc/credstore/wattmesh-agent.token")
        path.touch(0o600)
        path.write_text(token)
        for name in (ACTUATOR, AGENT):
            took[name] = timed("systemctl", "start", name)
        for name in SERVICES:
            now = shown(name, "ActiveState", "SubState", "StatusText", "NRestarts", "Type")
            good = (now["ActiveState"], now["SubState"], now["Type"]) == (
                "active",
                "running",
                "notify",
            )
            text = f"READY after {took[name]:.1f} s; STATUS: {now['StatusText'] or '(none)'}"
            self.add(f"`systemctl start {name}`", text, good and now["NRestarts"] == "0")

    def hardening(self) -> None:
        """What the kernel says of the processes."""
        for name, wanted in ((DAEMON, 0), (AGENT, 0), (ACTUATOR, KEPT)):
            now = status_of(pid_of(name))
            held = int(now["CapEff"], 16)
            text = (
                f"uid {now['Uid'].split()[0]}, capabilities {held:#x}, NoNewPrivs "
                f"{now['NoNewPrivs']}, seccomp filters {now['Seccomp_filters']}"
            )
            self.add(
                f"process of {name}",
                text,
                held == wanted and now["NoNewPrivs"] == "1" and now["Seccomp"] == "2",
            )

    def devices(self) -> None:
        """Each in its place: the GPUs' devices and library, and nothing else."""
        ours = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
        for name in SERVICES:
            got = probed(f"probe-{name}")
            through = {got[each] for each in ours}
            others = {got[each] for each in ("fuse-like", "foreign")}
            self.add(
                f"in {name}'s place: /dev/nvidia*, NVML library, other devices",
                f"{'/'.join(sorted(through))}, {got['library']}, {'/'.join(sorted(others))}",
                through == {"ENXIO"} and got["library"] == "done" and others == {"EPERM"},
            )
            fence = {
                key: got[key] for key in ("/home", "/root", "/etc", "/proc/sys", "netlink", "/tmp")
            }
            self.add(
                f"in {name}'s place: what is closed",
                ", ".join(f"{key} {value}" for key, value in fence.items()),
                "done" not in fence.values() and got["own state"] == "done",
            )
            shut = probed(f"closed-{name}")
            self.add(
                f"the same without DeviceAllow (must be shut): {name}",
                "/".join(sorted({shut[each] for each in ours})),
                {shut[each] for each in ours} == {"EPERM"},
            )

    def credentials(self) -> None:
        """Only the service reads them; what is not there is no fault."""
        self.add(
            "credentials in the daemon's and the agent's place",
            f"{', '.join(probed('probe-wattmesh')['credentials'])}; "
            f"{', '.join(probed('probe-wattmesh-agent')['credentials'])}",
            probed("probe-wattmesh")["credentials"] == ["wattmesh-tls.key"]
            and probed("probe-wattmesh-agent")["credentials"] == ["wattmesh-agent.token"],
        )
        for name in SERVICES:
            others = [each for each in probed(f"probe-{name}")["in sight"] if name not in each]
            self.add(
                f"in {name}'s place: credentials of other services in sight",
                ", ".join(others) or "none",
                not others,
            )
        for path in (
            "/run/credentials/wattmesh.service/wattmesh-tls.key",
            "/run/credentials/wattmesh-agent.service/wattmesh-agent.token",
        ):
            seen = {}
            for user in ("ann", "olga", "nobody"):
                answer = said("runuser", "-u", user, "--", "cat", path, ok=False)
                seen[user] = "denied" if "Permission denied" in answer else "read"
            stat = said("stat", "-c", "%A %U:%G", path).strip()
            self.add(
                f"{Path(path).name} for others",
                f"{stat}; " + ", ".join(f"{user}: {answer}" for user, answer in seen.items()),
                set(seen.values()) == {"denied"},
            )

    # A job, and a clock

    def job(self) -> None:
        """A job of ann's on both GPUs, at a lower clock by order."""
        uuids = [gpu.uuid for gpu in self.gpus.gpus]
        said(
            *("systemd-run", "--unit=job", "--uid=ann", "--property=RuntimeDirectory=job"),
            *("--property=DefaultDependencies=no", "/opt/wattmesh/bin/python", "-B"),
            *("/check/scripts/systemd_root/job.py", str(STEPS), *uuids),
        )
        wait_for(STEPS.exists, "the job's first step")
        for gpu in self.gpus.gpus:
            gpu.process(pid_of("job"))
            gpu.load(1.0)
        self.order("a clock by an operator's order, through daemon, agent and actuator")

    def order(self, what: str) -> None:
        """Order the point with the lower clock, and wait for it on the boards."""

        def taken() -> bool:
            text = said("wattmesh", "switch", "llama-8b", "S", "--reason", "a trial", ok=False)
            (OUT / "order.txt").write_text(text)
            return "error" not in text.lower() and "wattmesh:" not in text

        took_s = wait_for(taken, "the order")
        took_s += wait_for(lambda: self.locks() == {SLOW_MHZ}, "the lock on both boards")
        self.add(what, f"{SLOW_MHZ} MHz on both boards within {took_s:.1f} s", True)

    def point(self) -> str:
        """Say at which point the daemon has the run."""
        return str(json.loads(said("wattmesh", "status", "--json"))["runs"][0]["point"])

    def screens(self) -> None:
        """Status and doctor inside."""
        (OUT / "status.txt").write_text(said("wattmesh", "status"))
        status = json.loads(said("wattmesh", "status", "--json"))
        (OUT / "status.json").write_text(json.dumps(status, indent=1))
        run = status["runs"][0]
        self.add(
            "`wattmesh status`",
            f"{len(status['runs'])} run, {run['name']} at {run['point']}, "
            f"{status['power']['covered']} of {status['power']['gpus']} GPUs, "
            f"trouble {status['trouble']}",
            run["point"] == "S" and status["power"]["covered"] == 2,
        )
        text = said("wattmesh", "doctor", ok=False)
        (OUT / "doctor.txt").write_text(text)
        wrong = [" ".join(line.split()) for line in text.splitlines() if " problem " in line]
        self.add("`wattmesh doctor`, as root", "; ".join(wrong) or "nothing wrong", not wrong)

    def across(self, what: str, *acts: tuple[str, ...]) -> None:
        """Do something to the daemon: the job steps on, its clock stays."""
        pid, steps = pid_of("job"), int(STEPS.read_text())
        with self.watched() as seen:
            took_s = sum(timed(*act) for act in acts)
            time.sleep(6.0)
        gone = int(STEPS.read_text()) - steps
        same = pid_of("job") == pid and self.locks() == {SLOW_MHZ}
        self.add(
            what,
            f"{took_s:.1f} s; the job took {gone} steps meanwhile, same process; "
            f"changes of a lock: {len(seen) - 1}",
            same and len(seen) == 1 and gone > 0,
        )

    def survives(self) -> None:
        """Reload, restart, upgrade and stop of the daemon; restart of the agent."""
        self.across("`systemctl reload wattmesh`", ("systemctl", "reload", DAEMON))
        self.across("`systemctl restart wattmesh`", ("systemctl", "restart", DAEMON))
        pip = ("/opt/wattmesh/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/srv")
        self.across(
            "upgrade as in docs/install.md (the same version again)",
            (*pip, "--force-reinstall", "--no-deps", "wattmesh"),
            ("wattmesh", "units", "daemon", "--install", "/", "--replace"),
            ("systemctl", "daemon-reload"),
            ("systemctl", "restart", DAEMON),
        )
        self.across("`systemctl restart wattmesh-agent`", ("systemctl", "restart", AGENT))

    def stopped(self) -> None:
        """The daemon stays away: the lease ends by itself, and the job goes on."""
        pid, steps = pid_of("job"), int(STEPS.read_text())
        with self.watched() as seen:
            timed("systemctl", "stop", DAEMON)
            lease_s = wait_for(lambda: self.locks() == {None}, "the end of the lease", 180.0)
        good = pid_of("job") == pid and int(STEPS.read_text()) > steps and lease_s > 1.0
        self.add(
            "`systemctl stop wattmesh`",
            f"the lock stands for {lease_s:.0f} s more, then its lease ends "
            f"(changes: {len(seen) - 1}); the job trains on",
            good,
        )
        took_s = timed("systemctl", "start", DAEMON)
        wait_for(lambda: self.point() == "A", "the run at its submitted point")
        self.add(
            "`systemctl start wattmesh` after that",
            f"{took_s:.1f} s; the run is at its submitted point: the order's lease was over",
            self.locks() == {None},
        )
        self.order("the clock by a second order")

    def actuator_ends(self) -> None:
        """Its end gives back at once, by ExecStopPost, also where it was killed."""
        steps = int(STEPS.read_text())
        before = restarts(ACTUATOR)
        os.kill(pid_of(ACTUATOR), signal.SIGKILL)
        free_s = wait_for(lambda: self.locks() == {None}, "ExecStopPost")
        back_s = wait_for(lambda: self.locks() == {SLOW_MHZ}, "the lock by the next actuator")
        self.add(
            "SIGKILL to the actuator",
            f"given back after {free_s:.1f} s by ExecStopPost; started again "
            f"(NRestarts {restarts(ACTUATOR)}), set anew {back_s:.1f} s later; the job trains on",
            free_s < 2.0 and restarts(ACTUATOR) == before + 1 and int(STEPS.read_text()) > steps,
        )

    # What systemd does of itself

    def watchdog(self) -> None:
        """A service that stands still is killed and started again."""
        drop = Path(f"/run/systemd/system/{DAEMON}.service.d")
        drop.mkdir(parents=True)
        (drop / "watchdog.conf").write_text("[Service]\nWatchdogSec=10\nTimeoutAbortSec=5\n")
        said("systemctl", "daemon-reload")
        said("systemctl", "restart", DAEMON)
        job = pid_of("job")
        for name, after in ((DAEMON, "10 s here, 180 s in the unit"), (ACTUATOR, "30 s")):
            old, before = pid_of(name), restarts(name)
            os.kill(old, signal.SIGSTOP)
            took_s = wait_for(partial(replaced, name, old), f"{name} by its watchdog", 120.0)
            again = restarts(name) - before
            self.add(
                f"SIGSTOP to {name}, WatchdogSec {after}",
                f"another process READY after {took_s:.1f} s, NRestarts +{again}, "
                "job's process the same",
                again == 1 and pid_of("job") == job,
            )
        (drop / "watchdog.conf").unlink()
        said("systemctl", "daemon-reload")
        said("systemctl", "restart", DAEMON)

    def mistake(self) -> None:
        """Settings that a person must mend: no start after the first."""
        path = Path("/etc/wattmesh/wattmesh.toml")
        good = path.read_text()
        path.write_text(good.replace('mode = "act"', 'mode = "akt"', 1))
        said("systemctl", "restart", DAEMON, ok=False)
        time.sleep(5.0)
        now = shown(DAEMON, "ActiveState", "NRestarts", "ExecMainStatus")
        self.add(
            "a mistake in the settings",
            f"{now['ActiveState']}, exit {now['ExecMainStatus']}, NRestarts {now['NRestarts']}",
            (now["ActiveState"], now["ExecMainStatus"], now["NRestarts"]) == ("failed", "2", "0"),
        )
        path.write_text(good)
        said("systemctl", "reset-failed", DAEMON)
        said("systemctl", "start", DAEMON)

    def end(self) -> None:
        """All are stopped in order; nothing is left but their state."""
        took_s = timed("systemctl", "stop", *SERVICES)
        ended = {name: shown(name, "Result")["Result"] for name in SERVICES}
        left = [each for each in ("wattmesh", AGENT, ACTUATOR) if Path("/run", each).exists()]
        self.add(
            "`systemctl stop` of all three",
            f"{took_s:.1f} s, {', '.join(sorted(set(ended.values())))}; "
            f"runtime folders left: {left or 'none'}; "
            f"locks left: {'none' if self.locks() == {None} else self.locks()}",
            set(ended.values()) == {"success"} and not left and self.locks() == {None},
        )
        bad = [
            f"{name}: {line}"
            for name in SERVICES
            for line in log(name).splitlines()
            if any(word in line for word in BADNESS)
        ]
        self.add("complaints in the journal of the three", "; ".join(bad[:3]) or "none", not bad)
        versions = said("systemctl", "--version").split("\n", 1)[0]
        self.add("which systemd", versions, True)

    def run(self) -> None:
        """Everything, in order."""
        self.start()
        self.hardening()
        self.devices()
        self.credentials()
        self.job()
        self.screens()
        self.survives()
        self.stopped()
        self.actuator_ends()
        self.watchdog()
        self.mistake()
        self.end()


def replaced(name: str, old: int) -> bool:
    """Whether another process of a service is ready."""
    new = shown(name, "MainPID", "ActiveState")
    return new["ActiveState"] == "active" and int(new["MainPID"]) not in (0, old)


def main() -> None:
    """Find everything; what breaks is a finding too."""
    findings = Findings(OUT / "findings.md")
    try:
        Site(findings).run()
    except Exception as error:
        traceback.print_exc()
        findings.add("the checks themselves", f"ended: {str(error)[:300]}", False)
    units = said("systemctl", "list-units", "--all", "--no-pager", ok=False)
    (OUT / "units.txt").write_text(units)
    (OUT / "journal.txt").write_text(said("journalctl", "--no-pager", ok=False))
    (OUT / "done").write_text("1" if findings.wrong else "0")


if __name__ == "__main__":
    main()
