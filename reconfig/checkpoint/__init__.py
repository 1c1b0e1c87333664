"""Saving and loading a job's state, with torch's distributed checkpoint behind it.

The map:
    checkpoint.py     saving a distributed state to a sealed folder, and loading it in any layout
    damage.py         comparing every byte of a checkpoint with the digests taken from memory when
                      it was written
    dcp.py            torch's distributed checkpoint on universal checkpoints
    dcp_files.py      one rank's data files of a universal checkpoint
    dcp_merge.py      what the coordinator makes of every rank's part
    dcp_parts.py      what one rank has to write, from DCP's plan
    dcp_reader.py     loading: torch's distributed checkpoint reads a universal checkpoint, exactly
                      what it needs
    dcp_writer.py     saving: torch's distributed checkpoint writes a universal checkpoint, directly
    digest.py         the logical digest: one number for a whole distributed state, equal in every
                      layout
    digest_host.py    the logical digest of memory that the CPU can reach
    direct.py         a rank's own boxes of a state, written to and read from a universal checkpoint
                      without a planner
    early_rebuild.py  when a switch may begin to rebuild before its checkpoint is on the disk, and
                      why not (pure)
    extra_state.py    what a checkpoint says of a state beside its tensors
    foreign.py        checkpoints that the job's own checkpointer writes
    own_saves.py      saving through the job's own checkpointer
"""
