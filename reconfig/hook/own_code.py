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


def fingerprint(launched: int) -> Fingerprint:
    """Return what is known in this process.

    Args:
        launched: how many ranks the launcher started.
    """
    models = nccl = None
    if torch.cuda.is_available():
        models = f"{launched} x {torch.cuda.get_device_name()}"
        nccl = ".".join(map(str, torch_compat.nccl_version()))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return Fingerprint(
        gpu_models=models,
        torch=torch.__version__,
        nccl=nccl,
        code_digest=code_digest(),
        topology=f"{launched // local} x {local} ranks" if local else None,
    )


def code_digest() -> str | None:
    """Return the sha256 of the run's own source files that are loaded; None without any."""
    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and name.partition(".")[0] != "wattmesh" and _is_own(Path(path)):
            found[name] = Path(path)
    whole = hashlib.sha256()
    for name, path in sorted(found.items()):
        try:
            whole.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        except OSError:
            continue
    return whole.hexdigest() if found else None


def _is_own(path: Path) -> bool:
    if path.suffix != ".py":
        return False
    full = path.resolve()
    others = [*site.getsitepackages(), site.getusersitepackages()]
    others += [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    if "site-packages" in full.parts or "dist-packages" in full.parts:
        return False
    return not any(full.is_relative_to(Path(each).resolve()) for each in others)
