"""A storage writer and a storage reader of universal checkpoints for torch.distributed.checkpoint.

    dcp.save(state_dict, storage_writer=UniversalWriter(folder))
    dcp.load(state_dict, storage_reader=UniversalReader(folder))

`HOOK` names suit `{"model": ..., "optim": ...}`; torchtitan's state needs `names=TORCHTITAN`.
"""

from torch.distributed.checkpoint.api import CheckpointException

from wattmesh.errors import WattmeshError
from wattmesh.reconfig.checkpoint.dcp_storage.reader import UniversalReader
from wattmesh.reconfig.checkpoint.dcp_storage.writer import CheckpointMetadata, UniversalWriter
from wattmesh.reconfig.universal.index.names import HOOK, TORCHTITAN, Names

__all__ = [
    "HOOK",
    "TORCHTITAN",
    "CheckpointMetadata",
    "Names",
    "UniversalReader",
    "UniversalWriter",
    "cause_of",
]


def cause_of(error: CheckpointException) -> BaseException:
    """Return the cause of DCP's exception, which is no `Exception`; one of ours if there is one."""
    failures = [failure for failure, _ in error.failures.values()]
    ours = [each for each in failures if isinstance(each, WattmeshError)]
    return next(iter([*ours, *failures]), error)
