"""The lines of docs/slurm.md, run as they stand there: the example trainer moves to one node."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.daemon.waiting import wait_for
from tests.slurm.cluster import ENDED, Cluster
from tests.slurm.jobs.paper import REPOSITORY

PAGE = REPOSITORY / "docs" / "slurm.md"


def test_the_lines_of_the_page_train_and_move_a_run(slurm: Cluster, tmp_path: Path) -> None:
    """Two nodes, a stop at a boundary, one node: real ranks of examples/pretrain under srun."""
    text = PAGE.read_text("utf-8").partition("## From a script to a moved run")[2]
    script, lines, *_ = re.findall(r"```(?:bash)?\n(.*?)```", text, re.DOTALL)
    (tmp_path / "train.sh").write_text(script)
    run = tmp_path / "run"
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "GLOO_SOCKET_IFNAME": "lo",
    }

    def said() -> str:
        logs = sorted(tmp_path.glob("slurm-*.out"))
        return "\n".join(each.read_text()[-3000:] for each in logs)

    def wait(condition: Callable[[], object]) -> None:
        try:
            wait_for(condition, "the next line's turn")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{said()}") from error

    def checkpoints() -> set[str]:
        return {each.name for each in run.glob("step-*")}

    def fresh() -> set[str]:
        return checkpoints() - before

    def all_ended() -> bool:
        return all(each in ENDED for each in slurm.states().values())

    printed, before = {}, set[str]()
    for line in lines.splitlines():
        if line.startswith(("touch", "python")):
            wait(fresh)
        if line.startswith("sbatch"):
            wait(all_ended)
            before = checkpoints()
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        printed[line.split()[0]] = done.stdout
    wait(all_ended)
    assert "pretrain" in printed["squeue"]
    assert re.search(r"begun +2 ranks, .*\nbegun +1 ranks, ", printed["python"])
    assert said().count("the run was stopped") == 2
