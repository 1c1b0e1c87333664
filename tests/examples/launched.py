"""The script of examples/pretrain as a user starts it, by processes that import nothing anew.

That it starts under the real launcher is for the tests of the demo and of profiling to show.
"""

import json
import os
import runpy
import sys
from pathlib import Path

from tests.hook.harness import Zygote
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE

_ASKED = "PRETRAIN"
_OF_A_LAUNCHER = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "TORCHELASTIC_USE_AGENT_STORE",
)


def start(
    zygote: Zygote, folder: Path, *words: str, ranks: int = 0, gpus: Path | None = None
) -> int:
    """Start the script: as so many ranks, or alone, with no launcher; gives the launch's number.

    `folder`: takes the logs, one per rank. `gpus`: the simulated ones.
    """
    folder.mkdir(exist_ok=True)
    asked = {"words": words, "alone": not ranks, "gpus": str(gpus or "")}
    environment = {_ASKED: json.dumps(asked)}
    return zygote.start(ranks or 1, environment, folder, "tests.examples.launched:main")


def main() -> int:
    """Be `python -m examples.pretrain` with the words that were asked for."""
    asked = json.loads(os.environ.pop(_ASKED))
    for name in _OF_A_LAUNCHER if asked["alone"] else ():
        del os.environ[name]
    os.environ.pop(FOLDER_VARIABLE, None)
    if asked["gpus"]:
        os.environ[FOLDER_VARIABLE] = asked["gpus"]
    sys.argv = ["examples.pretrain", *asked["words"]]
    runpy.run_module("examples.pretrain", run_name="__main__", alter_sys=True)
    return 0
