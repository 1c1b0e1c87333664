"""One alert end to end: the daemon dies, a person is told; it comes back, the person is told."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import yaml

from tests.daemon.process import SETTINGS, daemon
from tests.daemon.waiting import wait_for
from tests.observability.conftest import scrape_config
from tests.observability.prometheus import alertmanager, free_port, prometheus
from tests.observability.rule_files import rules

LIMIT_S = 60.0


@contextmanager
def webhook() -> Iterator[tuple[int, "Queue[dict[str, Any]]"]]:
    """Listen for what Alertmanager tells; give the port and what came."""
    came: Queue[dict[str, Any]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            for each in json.loads(body)["alerts"]:
                came.put(each)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, came
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10.0)


def in_a_hurry(folder: Path) -> str:
    """Write one shipped alert as it is, but that it waits for a second; give the file."""
    (rule,) = (each for each in rules()["daemon.yml"] if each["alert"] == "WattmeshDaemonDown")
    group = {"name": "one", "rules": [rule | {"for": "1s"}]}
    path = folder / "one.yml"
    path.write_text(yaml.safe_dump({"groups": [group]}))
    return str(path)


def test_a_dead_daemon_is_told_and_its_return_too(tmp_path: Path) -> None:
    """Real daemon, Prometheus, Alertmanager; labels, sentence and link as the rule has them."""
    port = free_port()
    text = SETTINGS.format(folder=tmp_path, more="").replace("127.0.0.1:0", f"127.0.0.1:{port}")
    with ExitStack() as running:
        hook, came = running.enter_context(webhook())
        route = {
            "receiver": "person",
            "group_by": ["alertname"],
            "group_wait": "0s",
            "group_interval": "1s",
        }
        receiver = {
            "name": "person",
            "webhook_configs": [{"url": f"http://127.0.0.1:{hook}/", "send_resolved": True}],
        }
        told = {"route": route, "receivers": [receiver]}
        manager = running.enter_context(alertmanager(tmp_path / "alertmanager", told))
        one = running.enter_context(daemon(tmp_path, text=text))
        config = scrape_config([port], port)
        del config["scrape_configs"][1:]
        config["rule_files"] = [in_a_hurry(tmp_path)]
        config["alerting"] = {
            "alertmanagers": [{"static_configs": [{"targets": [manager.address]}]}]
        }
        watching = running.enter_context(prometheus(tmp_path / "prometheus", config))
        wait_for(lambda: watching.vector('up{job="wattmesh"} == 1'), "the first scrape")
        assert came.empty()
        one.process.kill()
        first = came.get(timeout=LIMIT_S)
        assert first["status"] == "firing"
        assert first["labels"]["alertname"] == "WattmeshDaemonDown"
        assert first["labels"]["severity"] == "critical"
        assert first["labels"]["instance"] == f"127.0.0.1:{port}"
        assert first["annotations"]["summary"] == (
            f"The wattmesh daemon at 127.0.0.1:{port} does not answer Prometheus"
        )
        assert first["annotations"]["runbook_url"] == "docs/runbook.md#wattmeshdaemondown"
        running.enter_context(daemon(tmp_path, text=text))
        last = first
        while last["status"] != "resolved":
            last = came.get(timeout=LIMIT_S)
        assert last["fingerprint"] == first["fingerprint"]
