"""How a run names the scheduler's job that it is part of."""

import pytest

from wattmesh.reconfig.launch.launched import scheduler_key


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}, "slurm:4711"),
        ({"POD_UID": "0f1e-2d"}, "pod:0f1e-2d"),
        ({"SLURM_JOB_ID": "", "HOME": "/home/a"}, ""),
        ({}, ""),
    ],
)
def test_the_key_is_the_one_that_the_node_sees(environment: dict[str, str], key: str) -> None:
    """The same words as in the cgroups of the job's processes, or none."""
    assert scheduler_key(environment) == key
