"""The daemon as a process: start, signals, kill -9, reload, and who leads."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders import messages
from tests.daemon.process import SETTINGS, daemon
from tests.daemon.waiting import wait_for
from wattmesh.telemetry.fake_nvml import FakeNvml

CARBON = """\
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "trace.csv"
compress = 3600
"""

FORBIDDEN = ("torch", "alembic", "typer", "rich", "scipy", "matplotlib", "numpy", "pandas")


def trace(folder: Path) -> None:
    """Write a recorded day."""
    rows = [
        f"2023-06-14T{hour:02d}:{minute:02d}:00Z,GB,average,direct,{150 + hour},{151 + hour}"
        for hour in range(24)
        for minute in (0, 30)
    ]
    head = (
        "timestamp_utc,zone,kind,emission_factor_type,"
        "carbon_intensity_gco2eq_per_kwh,forecast_gco2_per_kwh"
    )
    (folder / "trace.csv").write_text("\n".join([head, *rows]) + "\n")


def test_a_daemon_lives_from_ready_to_stopping(tmp_path: Path) -> None:
    """READY, STATUS and WATCHDOG while it serves; SIGTERM ends it cleanly with STOPPING."""
    trace(tmp_path)
    with daemon(tmp_path, CARBON) as running:
        assert running.get("/healthz").body == {"ok": True}
        running.wait_told("STATUS=No live run; observing csv:GB:average:direct:CO2.")
        running.wait_told("WATCHDOG=1", times=2)
        wait_for(lambda: running.status()["carbon"]["g_per_kwh"], "a first poll")
        assert running.status()["trouble"] == []
        assert running.stop() == 0
        assert running.hear()[-1] == "STOPPING=1"
        assert not running.socket.exists()
        assert "stopped" in running.log


def test_an_interrupt_ends_it_as_cleanly(tmp_path: Path) -> None:
    """Ctrl-C in a terminal is a clean stop too."""
    with daemon(tmp_path) as running:
        assert running.stop(signal.SIGINT) == 0


def test_the_daemon_loads_nothing_that_it_must_not(tmp_path: Path) -> None:
    """None of the forbidden libraries is in the process, by import or by shared object."""
    code = (
        "import sys, wattmesh.controller.daemon.__main__\n"
        f"bad = [name for name in {FORBIDDEN!r} if name in sys.modules]\n"
        "sys.exit(', '.join(bad) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    sabotaged = code.replace("wattmesh.controller.daemon", "rich")
    assert subprocess.run([sys.executable, "-c", sabotaged], check=False, timeout=60).returncode
    with daemon(tmp_path) as running:
        running.register()
        running.status()
        maps = Path(f"/proc/{running.process.pid}/maps").read_text()
        assert "pydantic_core" in maps
        assert not [name for name in FORBIDDEN if f"/{name}/" in maps]


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """After kill -9 the next daemon leads at once, knows the run, and takes its next report."""
    with daemon(tmp_path) as running:
        running.register()
        assert running.post("/v1/freeze", {"run": messages.RUN, "reason": "look"}).status == 200
        epoch = running.status()["epoch"]
        assert running.stop(signal.SIGKILL) == -signal.SIGKILL
        assert running.socket.exists()
    with daemon(tmp_path) as running:
        view = running.status()
        assert (view["leading"], view["epoch"]) == (True, epoch)
        assert "look" in view["runs"][0]["frozen"]
        report = running.post(f"/v1/runs/{messages.RUN}/progress", messages.progress())
        assert report.status == 200
        assert running.stop() == 0


def test_kill_9_at_any_moment_of_the_start_is_safe(tmp_path: Path) -> None:
    """Killed during its start, the migration included, the next start ends the work."""
    for delay_s in (0.0, 0.15, 0.3, 0.45, 0.7, 1.0):
        with daemon(tmp_path, ready=False, migrated=False, forked=False) as running:
            time.sleep(delay_s)
            running.stop(signal.SIGKILL)
    with daemon(tmp_path, migrated=False) as running:
        running.register()
        assert running.stop() == 0


def test_a_second_daemon_on_one_socket_is_refused(tmp_path: Path) -> None:
    """The second start ends with a sentence that names the first; the first goes on."""
    with daemon(tmp_path) as first:
        done = subprocess.run(
            [sys.executable, "-m", "wattmesh.controller.daemon", "--config", first.settings],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 2
        assert f"another daemon (pid {first.process.pid}) serves" in done.stderr
        assert first.get("/healthz").status == 200


def test_a_second_daemon_on_one_journal_stands_by(tmp_path: Path) -> None:
    """It observes, takes no reports, and takes over when the leader is gone."""
    other = tmp_path / "other"
    other.mkdir()
    text = SETTINGS.format(folder=other, more="").replace(
        f"{other}/journal.db", f"{tmp_path}/journal.db"
    )
    with daemon(tmp_path) as leader, daemon(other, text=text) as standby:
        leader.register()
        view = standby.status()
        assert (view["leading"], view["epoch"]) == (False, None)
        assert str(leader.socket) in view["leader"]
        assert view["runs"][0]["name"] == "llama-8b"
        report = standby.post(f"/v1/runs/{messages.RUN}/progress", messages.progress())
        assert report.status == 503
        wait_for(lambda: "Standing by" in standby.status()["cycle"]["sentence"], "its sentence")
        leader.stop(signal.SIGKILL)
        wait_for(lambda: standby.status()["leading"], "the standby to take over")
        assert standby.status()["epoch"] == 2
        report = standby.post(f"/v1/runs/{messages.RUN}/progress", messages.progress(seq=2))
        assert report.status == 200


def test_a_clean_stop_hands_over_at_once(tmp_path: Path) -> None:
    """SIGTERM releases the lease: the next daemon need not wait until it runs out."""
    text = SETTINGS.format(folder=tmp_path, more="").replace("lease_s = 10", "lease_s = 60")
    other = tmp_path / "other"
    other.mkdir()
    with daemon(tmp_path, text=text) as first:
        assert first.stop() == 0
    moved = text.replace(f"{tmp_path}/w.sock", f"{other}/w.sock")
    with daemon(other, text=moved) as second:
        assert second.status()["epoch"] == 2


def test_mistakes_in_the_settings_end_the_start(tmp_path: Path) -> None:
    """Three mistakes: all three on stderr, exit status 2, nothing is left behind."""
    text = 'mode = "atc"\n[loops]\ncycle_s = 0\n[site]\ntimezone = "Mars"\n'
    with daemon(tmp_path, text=text, ready=False, migrated=False) as running:
        assert running.process.wait(30) == 2
        assert "has 3 mistakes" in running.log
        for key in ("mode", "loops.cycle_s", "site.timezone"):
            assert f"  {key} " in running.log
    assert {each.name for each in tmp_path.iterdir()} == {"wattmesh.toml", "notify", "daemon.log"}


@pytest.mark.parametrize("fault", ["port", "folder", "journal"])
def test_what_cannot_be_opened_ends_the_start_with_a_sentence(tmp_path: Path, fault: str) -> None:
    """A taken port or a folder that cannot be: exit status 2, one sentence, nothing left."""
    text = SETTINGS.format(folder=tmp_path, more="")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        more, words = {
            "port": (text.replace(":0", f":{port}"), "change metrics.listen"),
            "folder": (text.replace(f"{tmp_path}/w.sock", "/nowhere/w.sock"), "api.socket"),
            "journal": (text.replace("sqlite:///", "sqlite:////proc/"), "journal.url"),
        }[fault]
        with daemon(tmp_path, text=more, ready=False) as running:
            assert running.process.wait(30) == 2, running.log
            assert words in running.log
            assert "Traceback" not in running.log
            assert not running.socket.exists()


def test_power_that_is_not_there_yet_is_said_and_waited_for(tmp_path: Path) -> None:
    """Devices that are missing at the start are trouble in status, until they appear."""
    fake = FakeNvml.create(tmp_path / "gpus", 2)
    state = next(each for each in fake.folder.iterdir() if each != fake.library)
    state.rename(tmp_path / "away")
    more = f'[power]\nsource = "nvml"\nlibrary = "{fake.library}"\n'
    with daemon(tmp_path, more) as running:
        wait_for(lambda: running.status()["trouble"], "the trouble")
        (said,) = running.status()["trouble"]
        assert said.startswith("GPU power is not read: ")
        (tmp_path / "away").rename(state)
        wait_for(lambda: running.status()["power"]["gpus"] == 2, "the devices to be read")
        assert running.status()["trouble"] == []


def test_a_reload_takes_new_settings(tmp_path: Path) -> None:
    """SIGHUP: RELOADING, then READY, and the new mode and signal hold without a restart."""
    trace(tmp_path)
    with daemon(tmp_path) as running:
        assert running.status()["carbon"] is None
        text = running.settings.read_text().replace('"act"', '"advise"') + CARBON
        running.settings.write_text(text.replace("lease_s = 10", "lease_s = 3"))
        running.process.send_signal(signal.SIGHUP)
        running.wait_told("RELOADING=1\nMONOTONIC_USEC=")
        running.wait_told("READY=1", times=2)
        assert running.status()["mode"] == "advise"
        wait_for(lambda: running.status()["carbon"]["g_per_kwh"], "a poll of the new signal")
        assert "loops.lease_s changed too and need a restart" in running.log
        kinds = [each["kind"] for each in running.get("/v1/events").body["events"]]
        assert "reload" in kinds


def test_a_bad_reload_changes_nothing_and_says_so(tmp_path: Path) -> None:
    """A file with mistakes leaves the old settings in force, until it is mended."""
    with daemon(tmp_path) as running:
        good = running.settings.read_text()
        running.settings.write_text('mode = "advise"\nmodee = 1\n')
        running.process.send_signal(signal.SIGHUP)
        running.wait_told("READY=1", times=2)
        view = running.status()
        assert view["mode"] == "act"
        (said,) = view["trouble"]
        assert "was not taken, it has 1 mistake" in said
        assert "did you mean mode?" in running.log
        running.settings.write_text(good)
        running.process.send_signal(signal.SIGHUP)
        running.wait_told("READY=1", times=3)
        assert running.status()["trouble"] == []


def test_a_register_is_seen_by_the_cycle_at_once(tmp_path: Path) -> None:
    """A new run does not wait for the next cycle, and its sentence is in the status."""
    text = SETTINGS.format(folder=tmp_path, more="").replace("cycle_s = 0.2", "cycle_s = 60")
    with daemon(tmp_path, text=text) as running:
        running.register()
        wait_for(lambda: "llama-8b" in running.status()["cycle"]["sentence"], "its cycle")


def test_a_journal_from_a_newer_wattmesh_is_not_touched(tmp_path: Path) -> None:
    """At a revision that we do not know, and that asks for newer code: refused, left as it is."""
    with daemon(tmp_path) as running:
        running.stop()
    connection = sqlite3.connect(tmp_path / "journal.db")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.execute("UPDATE schema_floor SET oldest = '9999'")
    connection.commit()
    connection.close()
    with daemon(tmp_path, ready=False) as running:
        assert running.process.wait(30) == 2
        assert "newer than this wattmesh" in running.log


def test_a_stopping_daemon_waits_for_no_client(tmp_path: Path) -> None:
    """A run that waits for an order is sent home, and the stop takes seconds at most."""
    with daemon(tmp_path) as running:
        running.register()
        child = os.fork()
        if child == 0:
            try:
                running.get(f"/v1/runs/{messages.RUN}/order?wait=60", timeout_s=60.0)
            finally:
                os._exit(0)
        time.sleep(0.5)
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < 25
        os.waitpid(child, 0)


def test_a_stopping_daemon_waits_for_no_provider(tmp_path: Path) -> None:
    """A provider that takes the call and never answers does not hold up the stop."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        more = (
            '[carbon.accounting]\nprovider = "neso"\nzone = "GB"\n'
            f'base_url = "http://127.0.0.1:{port}"\n'
        )
        with daemon(tmp_path, more) as running:
            silent.settimeout(20.0)
            connection, _ = silent.accept()
            began = time.monotonic()
            assert running.stop() == 0
            assert time.monotonic() - began < 25
            connection.close()


@pytest.mark.parametrize("arguments", [[], ["--config"], ["--bogus", "x"]])
def test_misuse_exits_2(arguments: list[str]) -> None:
    """Wrong arguments end with status 2 and the usage."""
    done = subprocess.run(
        [sys.executable, "-m", "wattmesh.controller.daemon", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "usage: wattmesh daemon" in done.stderr
