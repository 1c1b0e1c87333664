"""What a run computes with: the libraries, the devices, and its own source files.

Invariant: a file of the standard library, of an installed package or of wattmesh is none of the
run's own code.
"""

import hashlib
import os
import site
import sys
import sysconfig
from pathlib import Path

import torch

from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.launch.launched import ranks_here

_PACKAGES = frozenset(("site-packages", "dist-packages"))


def fingerprint(launched: int) -> Fingerprint:
    """Return what is known in this process.

    Args:
        launched: how many ranks the launcher started.
    """
    models = nccl = None
    if torch.cuda.is_available():
        models = f"{launched} x {torch.cuda.get_device_name()}"
        nccl = ".".join(map(str, torch_compat.nccl_version())) or None
    local = ranks_here()
    return Fingerprint(
        gpu_models=models,
        torch=torch.__version__,
        nccl=nccl,
        code_digest=code_digest(),
        topology=f"{launched // local} x {local} ranks" if local else None,
    )


def code_digest() -> str | None:
    """Return the sha256 of the run's own source files that are loaded; None without any.

    Neither their folder nor the order of imports counts.
    """
    files = []
    for path in _own_files():
        try:
            files.append(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
        except OSError:
            continue
    return hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest() if files else None


def _own_files() -> set[Path]:
    """Return the files of the run's own modules; several modules may come from one."""
    installed = _installed()
    found = set()
    for name, module in list(sys.modules.items()):
        # From its dict: some modules import others when they are asked for what they lack.
        path = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        if name.partition(".")[0] == "wattmesh" or path.startswith(installed):
            continue
        full = Path(os.path.realpath(path))
        if not str(full).startswith(installed) and not _PACKAGES.intersection(full.parts):
            found.add(full)
    return found


def _installed() -> tuple[str, ...]:
    """Return the folders of the standard library and of installed packages."""
    given = [*site.getsitepackages(), site.getusersitepackages()]
    given += [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    return tuple({f"{each}{os.sep}" for path in given for each in (path, os.path.realpath(path))})
