"""`make audit`: a known weakness fails; what could not be looked up is said, and fails nobody."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PINS = "alpha==1.0\nbeta==2.0  # of another one\n"

WEAK = {
    "id": "PYSEC-2026-1",
    "summary": "reads what it should not",
    "affected": [
        {
            "package": {"name": "beta", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.1"}]}],
        }
    ],
}


@contextmanager
def advisories(answers: dict[str, bytes], status: int = 200) -> Iterator[str]:
    """Answer as OSV does (google.github.io/osv.dev/post-v1-query); gives the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = answers.get(asked["package"]["name"], b"{}")
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        server.server_close()


def audit(pins: Path, url: str, *words: str) -> tuple[int, str]:
    """Run it; give its exit status and what it said."""
    command = [sys.executable, "-m", "scripts.audit", "--file", str(pins), "--url", url, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    """Two pins."""
    (tmp_path / "constraints.txt").write_text(PINS)
    return tmp_path / "constraints.txt"


def test_a_known_weakness_fails_and_none_does_not(pins: Path) -> None:
    """It is named with what mends it; the same service without it says how much was looked up."""
    with advisories({"beta": json.dumps({"vulns": [WEAK]}).encode()}) as url:
        status, said = audit(pins, url)
    assert status == 1
    assert "beta 2.0: PYSEC-2026-1, mended in 2.1" in said
    assert "audited: 2 packages of constraints.txt, 1 with a known weakness" in said
    with advisories({}) as url:
        assert audit(pins, url) == (
            0,
            "audited: 2 packages of constraints.txt, no known weakness\n",
        )


@pytest.mark.parametrize("how", ["nobody", "error", "portal", "slow"])
def test_what_could_not_be_looked_up_is_said(pins: Path, how: str) -> None:
    """One sentence, and no failure: CI asks wherever the advisories can be had."""
    answers = {"beta": b"<html>log in first</html>" if how == "portal" else b"{}"}
    with advisories(answers, 503 if how == "error" else 200) as url:
        address = "http://127.0.0.1:9/v1/query" if how == "nobody" else url
        status, said = audit(pins, address, *(("--limit-s", "0.01") if how == "slow" else ()))
    assert status == 0
    assert said.startswith("not audited: ")
    assert said.count("\n") == 1


def test_an_audit_that_cannot_be_made_fails(pins: Path) -> None:
    """A file that pins nothing is no finding of nothing."""
    pins.write_text("alpha>=1\n")
    assert audit(pins, "http://127.0.0.1:9/v1/query")[0] == 1
    pins.write_text("")
    assert audit(pins, "http://127.0.0.1:9/v1/query")[0] == 1
