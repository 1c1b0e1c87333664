"""What a real Slurm tells a job's processes of its GPUs, as the hook reads it."""

from pathlib import Path

from tests.daemon.waiting import wait_for
from tests.slurm.cluster import ENDED, Cluster
from wattmesh.reconfig.gpus.allocated_gpus import gpu_ids

SCRIPT = """#!/bin/bash
told() {{ srun "${{@:2}}" sh -c 'env -0 > {out}/'$1'.$SLURM_PROCID'; }}
env -0 > {out}/batch.0
told step
told bound --gpus-per-task=1
told part --nodes=1 --ntasks=1
"""


def told(out: Path, name: str) -> tuple[int, ...] | str:
    """Read what the hook understands of the variables that a process was given."""
    lines = (out / name).read_text(errors="surrogateescape").split("\0")
    return gpu_ids(dict(line.split("=", 1) for line in lines if "=" in line))


def submit(slurm: Cluster, out: Path, *options: str) -> int:
    """Submit a job that writes down its variables."""
    out.mkdir()
    script = out / "job.sh"
    script.write_text(SCRIPT.format(out=out))
    return slurm.submit(script, "--output=/dev/null", *options)


def test_the_variables_of_every_process_name_its_nodes_gpus(slurm: Cluster, tmp_path: Path) -> None:
    """Two jobs beside each other on a node, and one on two nodes, with steps of each kind."""
    first = submit(slurm, tmp_path / "first", "--nodes=1", "--nodelist=n2", "--gpus-per-node=3")
    wait_for((tmp_path / "first/part.0").exists, "the first job")
    four = ("--nodes=1", "--nodelist=n1", "--ntasks-per-node=2", "--gpus-per-node=4")
    second = submit(slurm, tmp_path / "second", *four)
    wide = ("--nodes=2", "--nodelist=n3,n4", "--ntasks-per-node=2", "--gpus-per-node=2")
    third = submit(slurm, tmp_path / "third", *wide)
    jobs = (first, second, third)
    wait_for(lambda: all(slurm.states()[each] in ENDED for each in jobs), "the end of all")
    one = tmp_path / "first"
    assert [told(one, f"{each}.0") for each in ("batch", "step", "part")] == [(0, 1, 2)] * 3
    for name in ("batch.0", "step.0", "step.1", "bound.0", "bound.1", "part.0"):
        assert told(tmp_path / "second", name) == (0, 1, 2, 3), name
    # On several nodes only what a step was given is of the node for certain.
    many = tmp_path / "third"
    assert "batch script's node alone" in str(told(many, "batch.0"))
    assert [told(many, f"step.{rank}") for rank in range(4)] == [(0, 1)] * 4
    assert [told(many, f"bound.{rank}") for rank in range(4)] == [(0,), (1,), (0,), (1,)]
