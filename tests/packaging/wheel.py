"""Builds the package as a release would, and installs it where no checkout is near.

Invariant: the checkout is only read. Builds happen in a copy, without the network: the build
backend and all outside packages are those of the environment that runs the tests.
"""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def copy_checkout(target: Path) -> Path:
    """Copy what git tracks or would track, links as links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source = REPOSITORY / name
        if source.exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    return target


def build(checkout: Path) -> Path:
    """Build the sdist, and the wheel from that sdist; give the wheel."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", str(checkout)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the build failed:\n{done.stdout}\n{done.stderr}")
    (wheel,) = (checkout / "dist").glob("*.whl")
    return wheel


def files_of(wheel: Path) -> set[str]:
    """List the files of a wheel, its own metadata apart."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A clean virtual environment with the wheel in it."""

    folder: Path

    def run(self, program: str, *arguments: str) -> str:
        """Run one of its programs from `/`; give what it printed, fail when it fails."""
        done = subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} {arguments} ended {done.returncode}:\n{done.stderr}")
        return done.stdout


def install(wheel: Path, folder: Path) -> Installed:
    """Install `wheel` alone into a new environment that borrows this one's outside packages.

    They are borrowed by a path line: an editable install in them is not followed, since Python
    reads such hooks in an environment's own folder only.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    borrowed = folder / "lib" / version / "site-packages" / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(folder=folder)
