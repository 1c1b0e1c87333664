"""torch's distributed checkpoint on universal checkpoints: a storage writer and a storage reader.

    dcp.save(state_dict, storage_writer=UniversalWriter(folder))
    dcp.load(state_dict, storage_reader=UniversalReader(folder))

    dcp_writer.py   the writer: plan, publish        dcp_reader.py   the reader
    dcp_parts.py    what one rank has to write       memory.py       a tensor's memory as bytes
    dcp_files.py    one rank's data files            dcp_merge.py    every rank's parts as one index

`HOOK` names suit `{"model": ..., "optim": ...}`; torchtitan's state needs `names=TORCHTITAN`.
"""

from torch.distributed.checkpoint.api import CheckpointException

from wattmesh.errors import WattmeshError
from wattmesh.reconfig.checkpoint.dcp_reader import UniversalReader
from wattmesh.reconfig.checkpoint.dcp_writer import About, UniversalWriter
from wattmesh.reconfig.universal.index.names import HOOK, TORCHTITAN, Names

__all__ = ["HOOK", "TORCHTITAN", "About", "Names", "UniversalReader", "UniversalWriter", "cause_of"]


def cause_of(error: CheckpointException) -> BaseException:
    """The error behind DCP's own, which `except Exception` does not catch; ours before others."""
    failures = [failure for failure, _ in error.failures.values()]
    ours = [each for each in failures if isinstance(each, WattmeshError)]
    return next(iter([*ours, *failures]), error)
