"""`wattmesh.observe` in plain scripts, before the real daemon and fake GPUs."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_real_daemon import HEAD, ROWS
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, Equivalence, Evidence, OperatingPoint
from wattmesh.reconfig.layout import Layout
from wattmesh.telemetry.fake_nvml import FakeNvml

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
import json, os, pathlib, sys, time
from wattmesh.telemetry.fake_nvml import FakeNvml

out, gpu = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with FakeNvml(pathlib.Path(sys.argv[3])).gpu(gpu).busy():
    for step in range(10**6):
        if (out / "stop").exists():
            break
        time.sleep(0.02)
        # REPORT
if (out / "raise").exists():
    raise ValueError("the data ended")
print("trained", file=sys.stdout)
"""

SCRIPT = BARE.replace(
    "out, gpu =", 'import wattmesh\nrun = wattmesh.observe("train")\nout, gpu =', 1
).replace(
    "# REPORT",
    """run.report(tokens=512, loss=1.0)
        told = {each: getattr(run, each) for each in dir(run) if not each.startswith("_")}
        (out / "new").write_text(json.dumps(told, default=str))
        (out / "new").replace(out / f"told-{gpu}")""",
)
"""The same with two lines more, and what it is told written down."""


@dataclass(slots=True)
class Site:
    """One daemon, two GPUs, and the scripts beside it."""

    daemon: DaemonProcess
    gpus: FakeNvml
    folder: Path

    def environment(self, **more: str) -> dict[str, str]:
        """What a script is started with."""
        url = f"unix://{self.daemon.socket}"
        return {**self.gpus.environment(), "WATTMESH_URL": url, **more}

    def start(
        self, out: Path, gpu: int, text: str = SCRIPT, **more: str
    ) -> subprocess.Popen[bytes]:
        """Start a script that computes on a GPU."""
        out.mkdir(exist_ok=True)
        (out / "train.py").write_text(text)
        with (out / "out").open("wb") as said, (out / "err").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(out / "train.py"), str(out), str(gpu), str(self.gpus.folder)],
                env=self.environment(**more),
                stdout=said,
                stderr=log,
            )

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
        with sqlite3.connect(f"file:{self.daemon.folder}/journal.db?mode=ro", uri=True) as journal:
            (row,) = journal.execute("select gpus from runs where run = ?", (run,))
        gpus: list[str] = json.loads(row[0])
        return gpus


def told(out: Path, gpu: int) -> dict[str, Any]:
    """What the script was told last."""
    path = out / f"told-{gpu}"
    return json.loads(path.read_text()) if path.exists() else {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A daemon that acts, reads two fake GPUs, and has a catalogue for runs of the name."""
    folder = tmp_path_factory.mktemp("observe")
    gpus = FakeNvml.create(folder / "gpus", 2)
    (folder / "trace.csv").write_text(f"{HEAD}\n{ROWS}\n")
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
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    with daemon(folder, SETTINGS.format(folder=folder, now=now)) as running:
        yield Site(running, gpus, folder)


def test_two_lines_put_a_plain_script_on_every_screen(site: Site, tmp_path: Path) -> None:
    """Its GPU is found, its joules and grams come back to it, and where it ends is told."""
    out = tmp_path / "out"
    process = site.start(out, 1, CUDA_VISIBLE_DEVICES="1")
    try:
        wait_for(lambda: told(out, 1).get("carbon_per_step_g"), f"figures: {told(out, 1)}")
        said = told(out, 1)
        assert said["energy_j"] > 0
        assert said["energy_per_step_j"] > 0
        assert said["flags"] == ["estimated", "simulated"]
        assert said["why_unknown"] == ""
        run = said["run"]
        assert site.named(run) == [site.gpus.gpu(1).uuid]
        line = site.run(run)["run"]
        assert (line["name"], line["state"], line["activity"]) == ("train", "live", "observed")
        assert (line["layout"], line["point"]) == ("", "")
        assert site.daemon.get(f"/v1/runs/{run}/order?wait=0").body["order"] is None
    finally:
        (out / "stop").touch()
    assert process.wait(30) == 0
    assert (out / "out").read_text() == "trained\n"
    assert (out / "err").read_text() == ""
    assert site.run(run)["finish_reason"] == "done"
    spent = site.daemon.get(f"/v1/runs/{run}/spent").body
    assert spent["energy_j"] == site.budget(run)["energy_j"] >= told(out, 1)["energy_j"]
