"""The bar of long work: on a terminal's standard error alone, and never in what a script reads."""

import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

from tests.builders.replays import days, job
from tests.replay.test_bench import trace
from wattmesh.reconfig import catalogue_file

DEADLINE_S = 120.0


def on_a_terminal(words: list[str]) -> tuple[bytes, bytes]:
    """Run a command whose standard error is a terminal; give what it wrote to both."""
    ours, theirs = pty.openpty()
    drawn = bytearray()

    def read() -> None:
        """Read until the last writer has gone, which Linux tells by an error."""
        try:
            while chunk := os.read(ours, 65_536):
                drawn.extend(chunk)
        except OSError:
            return

    reader = threading.Thread(target=read)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs) as child:
        os.close(theirs)
        reader.start()
        try:
            told, _ = child.communicate(timeout=DEADLINE_S)
        finally:
            child.kill()
    reader.join(DEADLINE_S)
    os.close(ours)
    assert child.returncode == 0, bytes(drawn)
    return told, bytes(drawn)


def test_replay_draws_its_bar_beside_the_json(tmp_path: Path) -> None:
    """The bar and the traces left out on standard error; one JSON value on standard output."""
    catalogue_file.save(job(), tmp_path / "job.toml")
    long, short = trace(tmp_path / "long.csv", days(4)), trace(tmp_path / "short.csv", days(1))
    words = [sys.executable, "-m", "wattmesh.controller.cli.main", "policy", "bench", "--json"]
    words += ["--catalogue", str(tmp_path / "job.toml"), "--trace", str(long)]
    words += ["--trace", str(short), "--slack", "1.5", "--starts", "1", "--hours", "6"]
    words += ["--forecast", "persist", "--policies", "mpc", "--processes", "1"]
    told, drawn = on_a_terminal(words)
    assert [row["policy"] for row in json.loads(told)["rows"]] == ["mpc"]
    assert b"replaying" in drawn
    assert b"short.csv is left out" in drawn
    quiet = subprocess.run(words, capture_output=True, timeout=DEADLINE_S, check=True)
    assert b"replaying" not in quiet.stderr
    assert json.loads(quiet.stdout)["rows"][0]["policy"] == "mpc"
