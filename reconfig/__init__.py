"""How a job changes shape without changing its mathematics.

The map:
    checkpoint/        saving and loading a job's state, with torch's distributed checkpoint behind
                       it
    client/            what a job and the daemon say to each other, from the job's side
    equivalence/       whether a job trains the same model however it is switched
    gpus/              which GPUs the processes of a launch compute on
    hook/              what lives in a rank of a training job
    launch/            what the processes of one launch are to each other
    probe/             how a rebuilt state is held against the one before
    state/             what one rank trains with, as named tensors and plain values that no layout
                       changes
    universal/         the universal checkpoint: the format itself, without torch
    catalogue.py       a job's operating points with their evidence (torch-free)
    catalogue_file.py  the catalogue's file (TOML), read and written
    itinerary.py       layouts that a run is walked through, one order at a time
    layout.py          degrees of parallelism; which ranks take part
    link.py            HTTP to the daemon over its Unix socket, with a hard limit on every call
    position.py        where training stands, in units that no layout changes (torch-free)
    ranges.py          what the numbers, texts and lists of the wire may be, each with its unit
    step_log.py        the step log: one JSON line per training step, written by the rank that knows
                       the loss
    switch.py          the durable state machine of one switch
    tables.py          reading a parsed TOML table strictly, collecting every mistake instead of
                       stopping at the first
    torch_compat.py    everything private of torch that the hook touches
    wire.py            what a run and the daemon say to each other
"""
