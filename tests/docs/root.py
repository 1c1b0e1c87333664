"""A root of one's own: this machine's files below, and whatever is written on top goes at the end.

Shell lines run there as root, in namespaces of mounts, processes and network. Three programs stand
aside, and nothing else: pip (no package index is asked; what it would install is tested in
tests/packaging), `python3 -m venv` that would fetch it, and the part of systemctl that speaks to a
running systemd: a service that is started runs as its unit's user, in its unit's folders, and
nobody confines it (tests/units does). Links of units are the real systemctl's.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
NEEDED = ("unshare", "chroot", "systemctl", "systemd-sysusers", "runuser", "useradd", "ip")

STAGE = """\
set -eu
base=$1 lines=$2
mount -t tmpfs tmpfs "$base"
mkdir "$base/up" "$base/work" "$base/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/up,workdir=$base/work" "$base/root"
mount -t proc proc "$base/root/proc"
mount --rbind /dev "$base/root/dev"
mount -t tmpfs tmpfs "$base/root/run"
ip link set lo up
cp "$lines"/* "$base/root/run/"
chroot "$base/root" /bin/sh /run/lines
"""

PYTHON3 = """\
#!/bin/sh
# python3 -m venv DIR: without pip, for which something stands in.
[ "$1 $2" = "-m venv" ] || exec /usr/bin/env -i PATH=/usr/bin:/bin python3 "$@"
{python} -m venv --without-pip "$3"
cp /run/pip "$3/bin/pip"
"""

PIP = """\
#!/bin/sh
# pip install [--upgrade] 'wattmesh[daemon]': what is installed here already, and this checkout.
here=$(dirname "$0")
[ "$(eval echo \\${{$#}})" = "wattmesh[daemon]" ] || exit 1
printf '%s\\n' {paths} > "$(echo "$here"/../lib/python*/site-packages)/wattmesh.pth"
cat > "$here/wattmesh" <<END
#!$here/python3
import sys
from wattmesh.controller.cli.main import main
sys.exit(main())
END
chmod +x "$here/wattmesh"
"""

SYSTEMCTL = """\
#!/bin/sh
# The real one for what stands on disk; what it would ask of a running systemd is done by hand.
words="" now=""
for each in "$@"; do
    if [ "$each" = --now ]; then now=1; else words="$words $each"; fi
done
/usr/bin/systemctl $words || exit $?
verb=$1
set -- $words
shift
case "$verb$now" in
    enable1|restart|disable1) exec {python} /run/service "$verb" "$@" ;;
esac
"""

SERVICE = '''\
"""Stop, and start, services as their units have them: users, folders, credentials, READY=1."""

import grp, os, pwd, shutil, signal, socket, subprocess, sys, time
from pathlib import Path

verb, *units = sys.argv[1:]
for unit in units:
    running = Path(f"/run/{unit}.pid")
    if running.exists():
        pid = int(running.read_text())
        try:
            os.kill(pid, signal.SIGTERM)
            while True:
                os.kill(pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            running.unlink()
    if verb == "disable":
        continue
    says = {}
    for line in Path(f"/etc/systemd/system/{unit}.service").read_text().splitlines():
        key, _, value = line.partition("=")
        says.setdefault(key, []).append(value)
    user = pwd.getpwnam(says["User"][0])
    group = grp.getgrnam(says["Group"][0]).gr_gid
    names = " ".join(says.get("SupplementaryGroups", [])).split()
    also = [grp.getgrnam(each).gr_gid for each in names]
    credentials = Path(f"/run/credentials/{unit}")
    state, runtime = says["StateDirectory"][0], says["RuntimeDirectory"][0]
    for folder in (f"/var/lib/{state}", f"/run/{runtime}", credentials):
        os.makedirs(folder, exist_ok=True)
        os.chown(folder, user.pw_uid, group)
    for name in says.get("LoadCredential", []):
        if os.path.exists(f"/etc/credstore/{name}"):
            shutil.copy(f"/etc/credstore/{name}", credentials)
            os.chown(credentials / name, user.pw_uid, group)
            os.chmod(credentials / name, 0o400)
    notify = f"/run/{unit}.notify"
    Path(notify).unlink(missing_ok=True)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(notify)
    manager.settimeout(0.1)
    os.chmod(notify, 0o666)
    with open(f"/run/{unit}.log", "ab") as log:
        process = subprocess.Popen(
            says["ExecStart"][0].split(), stdout=log, stderr=log, user=user.pw_uid, group=group,
            extra_groups=also, start_new_session=True,
            env={**os.environ, "NOTIFY_SOCKET": notify, "CREDENTIALS_DIRECTORY": str(credentials)},
        )
    running.write_text(str(process.pid))
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        try:
            if b"READY=1" in manager.recv(4096):
                break
        except TimeoutError:
            pass
    if process.poll() is not None:
        running.unlink()
'''


def missing() -> str:
    """Say what a root of one's own lacks here; "" when it can be had."""
    if os.geteuid() != 0:
        return "needs root"
    gone = [each for each in NEEDED if shutil.which(each) is None]
    return f"needs {', '.join(gone)}" if gone else ""


def run(folder: Path, lines: Sequence[str]) -> list[tuple[str, int, str]]:
    """Run lines one after the other in a new root; give each with its status and what it said."""
    given = folder / "lines.d"
    given.mkdir()
    paths = [str(REPOSITORY), sysconfig.get_path("purelib")]
    quoted = " ".join(map(shlex.quote, paths))
    python = os.path.realpath(sys.executable)
    programs = {
        "python3": PYTHON3.format(python=python),
        "pip": PIP.format(paths=quoted),
        "systemctl": SYSTEMCTL.format(python=python),
        "service": SERVICE,
    }
    for name, text in programs.items():
        (given / name).write_text(text)
        (given / name).chmod(0o755)
    needed = [*paths, python]
    parents = {str(each) for path in needed for each in Path(path).parents}
    script = [
        "install -m 0755 /run/python3 /run/systemctl /usr/local/sbin/",
        # A service's user may not look into a home folder, where an interpreter may lie.
        f"chmod a+rx {shlex.join(sorted(parents))}",
        "cd /root",
    ]
    for number, line in enumerate(lines):
        script.append(f"{{ {line}\n}} >/run/said-{number} 2>&1; echo {number} $?")
        script.append(f"cat /run/said-{number}; echo --- {number}")
    (given / "lines").write_text("\n".join(script) + "\n")
    base = folder / "base"
    base.mkdir()
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(
        [
            *("unshare", "--mount", "--pid", "--fork", "--net", "--kill-child"),
            *("sh", "-c", STAGE, "stage", str(base), str(given)),
        ],
        env={"PATH": path, "HOME": "/root", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found, rest = [], done.stdout
    for number, line in enumerate(lines):
        told, _, rest = rest.partition(f"--- {number}\n")
        status, _, said = told.partition("\n")
        found.append((line, int(status.split()[1]), said))
    return found
