"""A pod's program, with paper ranks, that kills itself before or after one step, once.

    DIES=new:before:book:1 DIED=FILE python -m tests.kubernetes.dying run ...

Steps are `book`, the launch book is changed; `call`, the API server is called; `answer`, the job is
told that its next launch is held; `share`, ranks are started. `new:`: in a job that follows another
one, and else only in the first.
"""

import functools
import os
import sys
from pathlib import Path

from tests.hosts.dying import Death, paper_words
from wattmesh.integrations.kubernetes import __main__ as commands
from wattmesh.integrations.kubernetes import begin
from wattmesh.integrations.kubernetes.client import ApiAddress, KubernetesClient
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launcher.launch_book import LaunchBook
from wattmesh.reconfig.launcher.torch_agent import Torchrun


def arm() -> None:
    """Find the test's server, start paper ranks, and prepare to die."""
    server = ApiAddress(url=os.environ["API_URL"], account=Path(os.environ["API_ACCOUNT"]))
    setattr(ApiAddress, "of_pod", classmethod(lambda kind, environment: server))  # noqa: B010
    setattr(commands, "Torchrun", functools.partial(Torchrun, words=paper_words))  # noqa: B010
    begin.RIVAL_S = float(os.environ.get("RIVAL_S", begin.RIVAL_S))
    dies, follows = os.environ.get("DIES", ""), "-w" in os.environ["JOB"]
    if dies.startswith("new:") is not follows or "run" not in sys.argv[1:2]:
        dies = ""
    death = Death(dies.removeprefix("new:"), os.environ.get("DIED", "/dev/null"))
    steps = [
        (LaunchBook, "change", "book"),
        (KubernetesClient, "_call", "call"),
        (asleep, "write", "answer"),
        (Torchrun, "launch_share", "share"),
    ]
    for owner, attribute, name in steps:
        setattr(owner, attribute, death.step(name, getattr(owner, attribute)))


if __name__ == "__main__":
    arm()
    sys.exit(commands.main())
