"""`python -m scripts.systemd_root BASE`: settings and the units of the checks, into a root."""

import re
import sys
from pathlib import Path

from tests.builders.messages import CLOCKED_CATALOGUE

SERVICES = ("wattmesh", "wattmesh-agent", "wattmesh-actuator")

SETTINGS = """\
mode = "act"
[api]
group = "wattmesh-jobs"
listen = "127.0.0.1:9470"
tls_certificate = "/etc/wattmesh/tls.pem"
tls_key = "credential:wattmesh-tls.key"
[power]
source = "agents"
library = "/dev/gpus/libnvidia-ml.so.1"
[agent]
node = "n1"
controller = "https://localhost:9470"
token_file = "credential:wattmesh-agent.token"
ca_file = "/etc/wattmesh/tls.pem"
relay = "/run/wattmesh-agent/agent.sock"
[actuator]
mode = "enforce"
library = "/dev/gpus/libnvidia-ml.so.1"
write_every_s = 0.0
step_share = 1.0
[carbon.accounting]
provider = "static"
zone = "GB"
kind = "average"
factor = "direct"
gas = "CO2"
g_per_kwh = 200.0
[runs.llama-8b]
catalogue = "/etc/wattmesh/llama-8b.toml"
"""
"""Head and GPU node in one: a power cap would do without a catalogue, a clock does not."""

CHECKS = """\
[Unit]
Description=what a real systemd shows of wattmesh
DefaultDependencies=no
After=systemd-journald.service
[Service]
ExecStart=/opt/wattmesh/bin/python -B -m scripts.systemd_root.checks
Environment=PYTHONUNBUFFERED=1 PYTHONPATH=/check
StandardOutput=file:/out/said
StandardError=file:/out/said
"""

TARGET = """\
[Unit]
Description=the checks alone
DefaultDependencies=no
Wants=systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service check.service
"""

ALONE = "[Unit]\nDefaultDependencies=no\n"
"""Only the services and what they ask for themselves: no start of a whole machine around them."""

MASKED = (
    *("sysinit.target", "basic.target", "systemd-sysctl.service", "systemd-udevd.service"),
    *(
        "systemd-udevd-control.socket",
        "systemd-udevd-kernel.socket",
        "systemd-udev-trigger.service",
    ),
    *("systemd-tmpfiles-setup.service", "systemd-tmpfiles-setup-dev.service"),
    *("systemd-tmpfiles-clean.service", "systemd-tmpfiles-clean.timer"),
    *("systemd-journal-flush.service", "systemd-binfmt.service", "systemd-modules-load.service"),
    *("systemd-random-seed.service", "systemd-update-utmp.service", "systemd-remount-fs.service"),
    *("systemd-timesyncd.service", "proc-sys-fs-binfmt_misc.automount"),
)

PROBE = "ExecStart=/opt/wattmesh/bin/python -B /check/scripts/systemd_root/probe.py"


def probe(unit: str) -> str:
    """Turn a service's unit into one that runs the probe in its place, once."""
    text = re.sub(r"(?m)^ExecStart=.*$", PROBE, unit)
    text = re.sub(r"(?m)^(ExecStopPost|ExecReload|WatchdogSec|Restart|NotifyAccess).*$", "", text)
    text = re.sub(r"(?m)^Type=.*$", "Type=oneshot", text)
    # Its own folders: systemd takes a runtime folder away with the service that has it.
    text = re.sub(r"(?m)^RuntimeDirectory=(.*)$", r"RuntimeDirectory=probe-\1", text)
    return text.replace("[Unit]", ALONE, 1)


def write(root: Path) -> None:
    """Write everything below a root that has wattmesh installed."""
    units = root / "etc/systemd/system"
    for name in SERVICES:
        text = (units / f"{name}.service").read_text()
        (units / f"{name}.service.d").mkdir(exist_ok=True)
        (units / f"{name}.service.d/alone.conf").write_text(ALONE)
        (units / f"probe-{name}.service").write_text(probe(text))
        closed = probe(re.sub(r"(?m)^DeviceAllow=.*$", "", text))
        (units / f"closed-{name}.service").write_text(closed)
    (units / "check.service").write_text(CHECKS)
    (units / "check.target").write_text(TARGET)
    for name in MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    for name in ("wattmesh", "credstore"):
        (root / "etc" / name).mkdir(exist_ok=True)
    (root / "etc/credstore").chmod(0o700)
    (root / "etc/credstore/wattmesh-agent.token").unlink(missing_ok=True)
    (root / "etc/wattmesh/wattmesh.toml").write_text(SETTINGS)
    (root / "etc/wattmesh/llama-8b.toml").write_text(CLOCKED_CATALOGUE)
    (root / "etc/hostname").write_text("own-root\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost own-root\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
