"""`python -m scripts.dashboard_pictures LIBRARIES [--out docs]`: draw each dashboard as a PNG.

LIBRARIES is a folder with the `node_modules` that package.json beside this file asks for: copy that
file there, `npm install --legacy-peer-deps --ignore-scripts`. Needs node, chromium and prometheus.
"""

import argparse
import http.server
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from PIL import Image

from scripts.dashboard_pictures.browser import Browser, browser
from tests.daemon.waiting import wait_for
from tests.observability.conftest import scrape_config
from tests.observability.live import live_site
from tests.observability.prometheus import LocalServer, prometheus

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "integrations/grafana/dashboards"
ICONS = "node_modules/@grafana/ui/dist/public"
RATE_S, STEP_S = 12, 1
"""What Grafana would choose where it scrapes each second."""

LIFE_S = 45.0
"""After the switch, the restart and the cap; the recorded day ends after some two minutes."""

COLOURS = 128

PAGE = """\
<!doctype html><meta charset="utf-8"><title>wattmesh</title>
<link rel="stylesheet" href="/page.css">
<script>window.__grafana_public_path__ = "/public/"; window.errors = [];
window.onerror = (words) => { document.title = "error: " + words; };</script>
<body style="margin:0;background:#111217"><div id="root"></div>
<script type="module" src="/page.js"></script></body>
"""


class _Page(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and hands questions for Prometheus on to it."""

    def __init__(self, *words: object, behind: str, folder: str) -> None:
        self._behind = behind
        super().__init__(*words, directory=folder)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer one request."""
        if not self.path.startswith("/api/v1/"):
            super().do_GET()
            return
        try:
            with urllib.request.urlopen(f"http://{self._behind}{self.path}", timeout=30) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path, watching: LocalServer) -> Iterator[int]:
    """Serve the page; give its port."""
    handler = partial(_Page, behind=watching.address, folder=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def assembled(libraries: Path, folder: Path) -> None:
    """Put the bundled page, the dashboards and Grafana's icons into a folder."""
    subprocess.run(
        ["node", str(HERE / "build.mjs"), str(libraries), str(folder / "page.js")], check=True
    )
    (folder / "index.html").write_text(PAGE)
    (folder / "public").symlink_to((libraries / ICONS).resolve())
    for path in SHIPPED.glob("*.json"):
        shutil.copy(path, folder)


def drawn(seen: Browser, port: int, board: str, began_s: float, out: Path) -> None:
    """Let the browser draw one dashboard, from a moment until now."""
    begin, end = (f"{datetime.fromtimestamp(each, UTC):%FT%TZ}" for each in (began_s, time.time()))
    asked = f"board={board}&from={begin}&to={end}&rate_s={RATE_S}&step_s={STEP_S}"
    seen.photograph(f"http://127.0.0.1:{port}/?{asked}", "window.drawn && window.drawn()", out)


def fresh(watching: LocalServer) -> bool:
    """Whether the newest scrapes were answered; a busy machine leaves some out."""
    seen = watching.vector("wattmesh_leader == 1 and on (instance) up == 1")
    return bool(seen and watching.vector("wattmesh_grid_carbon_intensity_grams_per_kilowatt_hour"))


def main() -> None:
    """Let a site live for two minutes, then draw."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dashboard_pictures")
    parser.add_argument("libraries", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs")
    parser.add_argument("--hold-s", type=float, default=0.0, help="serve on, to look by hand")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as all_of_it:
        folder = Path(name)
        (folder / "page").mkdir()
        assembled(asked.libraries.resolve(), folder / "page")
        site = all_of_it.enter_context(live_site(folder))
        daemon, agent = site.ports
        watching = all_of_it.enter_context(
            prometheus(folder / "prometheus", scrape_config([daemon], agent))
        )
        began_s = time.time()
        site.run_through()
        site.train(
            lambda: watching.vector("wattmesh_carbon_saved_grams"), "a saving that is settled"
        )
        wait_for(lambda: watching.vector("wattmesh_gpu_lease_seconds"), "a lease to be scraped")
        port = all_of_it.enter_context(served(folder / "page", watching))
        seen = all_of_it.enter_context(browser(folder / "profile"))
        site.train_s(LIFE_S)
        all_of_it.enter_context(site.training())
        for board in sorted(each.stem for each in SHIPPED.glob("*.json")):
            out = asked.out / f"dashboard-{board.removeprefix('wattmesh-')}.png"
            wait_for(partial(fresh, watching), "daemon and agent to be scraped anew", 60.0)
            drawn(seen, port, board, began_s, out)
            with Image.open(out) as picture:
                few = picture.convert("RGB").quantize(COLOURS)
            few.save(out, optimize=True)
            print(out, flush=True)
        if asked.hold_s:
            print(f"http://127.0.0.1:{port}/?board=wattmesh-run&from={began_s * 1000:.0f}&to=now")
            time.sleep(asked.hold_s)


if __name__ == "__main__":
    main()
