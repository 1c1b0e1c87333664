"""Saves and loads a job's state with torch's distributed checkpoint.

The map:
    checkpoint.py     saves a distributed state, and loads it in any layout
    damage.py         compares a checkpoint's bytes with the digests of its writer
    dcp.py            DCP storage writer and reader for universal checkpoints
    dcp_files.py      one rank's data files of a universal checkpoint
    dcp_merge.py      merges all ranks' parts to one index
    dcp_parts.py      what one rank writes, from DCP's plan
    dcp_reader.py     the DCP storage reader
    dcp_writer.py     the DCP storage writer
    digest.py         the logical digest of a distributed state, equal in every layout
    digest_host.py    the logical digest of older checkpoints on the CPU
    digest_rows.py    the logical digest's sums, by row and column
    direct.py         writes and reads a rank's own boxes without a planner
    early_rebuild.py  decides if a rebuild may start before the fsync
    extra_state.py    a checkpoint's state besides named tensors
    foreign.py        indexes checkpoints of the job's own checkpointer
    header.py         whose checkpoint it is, and where its run stood
    own_saves.py      saves through the job's own checkpointer
    shared_memory.py  a rank's staging area, which its host's other ranks map
    staged.py         the staged copy of a switch in these areas: written, read, made durable
"""
