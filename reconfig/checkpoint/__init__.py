"""Saves and loads a job's state with torch's distributed checkpoint.

The map:
    checkpoint.py     saves a distributed state, and loads it in any layout
    damage.py         compares a checkpoint's bytes with the digests of its writer
    dcp.py            DCP storage writer and reader for universal checkpoints
    dcp_storage/      the two sides of that storage, and the parts that ranks write
    digest.py         the logical digest of a distributed state, equal in every layout
    digest_host.py    the logical digest of older checkpoints on the CPU
    digest_rows.py    the logical digest's sums, by row and column
    direct.py         writes and reads a rank's own boxes without a planner
    extra_state.py    a checkpoint's state besides named tensors
    foreign.py        indexes checkpoints of the job's own checkpointer
    header.py         whose checkpoint it is, and where its run stood
    in_memory/        the checkpoint of a switch while it is in memory only
    own_saves.py      saves through the job's own checkpointer
"""
