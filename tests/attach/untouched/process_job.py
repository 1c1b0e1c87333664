"""A script that writes what its process is like before it attaches, while it trains, and after."""

import atexit
import faulthandler
import gc
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import wattmesh


def _logger(name: str) -> Any:
    one = logging.getLogger(name)
    return one.level, one.propagate, one.disabled, repr(one.handlers), repr(one.filters)


def _of_python() -> dict[str, Any]:
    return {
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), repr(gc.callbacks)),
        "gc.freeze": gc.get_freeze_count(),
        "sys.excepthook": sys.excepthook,
        "hooks": (sys.unraisablehook, threading.excepthook, sys.displayhook, sys.gettrace()),
        "streams": (sys.stdout, sys.stderr, sys.stdin),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), threading.stack_size()),
        "import": (sys.path, sys.meta_path, sys.dont_write_bytecode),
        "warnings": (warnings.filters, warnings.showwarning),
        "logging": [_logger(name) for name in ("", "wattmesh", "torch", "urllib3")],
        "logging.disable": logging.root.manager.disable,
        "multiprocessing": multiprocessing.get_start_method(allow_none=True),
        "random": (random.getstate(), repr(np.random.get_state(legacy=False))),
        "faulthandler": faulthandler.is_enabled(),
        "atexit": atexit._ncallbacks(),
        "threads": sorted(each.name for each in threading.enumerate()),
    }


def _of_system() -> dict[str, Any]:
    umask = os.umask(0o022)
    os.umask(umask)
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "cpus": os.sched_getaffinity(0),
        "rlimits": [resource.getrlimit(each) for each in (7, 8, 9)],
        "locale": locale.setlocale(locale.LC_ALL),
        "socket": socket.getdefaulttimeout(),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "signals": [
            (each, signal.getsignal(each))
            for each in sorted(signal.valid_signals() - {signal.SIGTERM})
        ],
    }


def _of_torch() -> dict[str, Any]:
    return {
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch dtype": (torch.get_default_dtype(), torch.get_default_device()),
        "torch precision": (
            torch.get_float32_matmul_precision(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
        ),
        "torch algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
        ),
        "torch grad": (torch.is_grad_enabled(), torch.is_anomaly_enabled()),
        "torch sharing": torch.multiprocessing.get_sharing_strategy(),  # type: ignore[no-untyped-call]
        "torch random": torch.get_rng_state().numpy().tobytes(),
        "process group": dist.is_initialized(),
    }


def seen() -> dict[str, str]:
    """What others in this process would notice, each as text."""
    found = {**_of_python(), **_of_system(), **_of_torch()}
    return {name: repr(each) for name, each in found.items()}


def _write(told: dict[str, dict[str, str]]) -> int:
    Path(os.environ["OUT"]).write_text(json.dumps(told))
    return 0


def attached() -> int:
    """Attach, train to a checkpoint, and let go."""

    def build(layout: wattmesh.Layout, ranks: wattmesh.Ranks) -> wattmesh.State:
        del layout, ranks
        net = torch.nn.ParameterList([torch.zeros(2)])  # draws nothing
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return wattmesh.State(modules=[net], optimizers=[optimizer])

    build(wattmesh.Layout(), wattmesh.Ranks(participants=(0,), global_rank=0))
    # What torch does when a first optimizer is made is not ours.
    told = {"before": seen()}
    session = wattmesh.attach(
        "process",
        build=build,
        probe=lambda state: 1.0,
        layout=wattmesh.Layout(),
        checkpoint_dir=os.environ["FOLDER"],
        boundary_every=1,
        tokens_total=2,
        gc_freeze=os.environ.get("FREEZE") == "yes",
    )
    session.report(tokens=1)
    session.boundary()
    told["meanwhile"] = seen()
    session.report(tokens=1)
    session.boundary()
    told["done"] = seen()
    session.close()
    told["after"] = seen()
    return _write(told)


def observed() -> int:
    """Be observed for two steps."""
    told = {"before": seen()}
    run = wattmesh.observe("process")
    run.report(tokens=1)
    told["meanwhile"] = seen()
    run.report(tokens=1)
    run.close()
    told["done"] = told["after"] = seen()
    return _write(told)
