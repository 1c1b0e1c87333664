"""Changes a job's parallel layout without changing its mathematics.

The map:
    checkpoint/        saves and loads a job's state with torch's distributed checkpoint
    client/            the job's side of the protocol with the daemon
    equivalence/       checks that a job trains the same model however it is switched
    gpus/              finds the GPUs that a launch's processes compute on
    hook/              what runs in a rank of a training job
    launch/            coordination of the processes of one launch
    launcher/          what a launcher does for a run: it holds the next launch while the run sleeps
    probe/             compares a rebuilt state with the one before
    state/             the training state of a rank, as named tensors and plain values
    universal/         the universal checkpoint format, without torch
    wire/              what a run and the daemon tell each other (torch-free)
    catalogue.py       a job's operating points with their evidence (torch-free)
    catalogue_file.py  reads and writes the catalogue's TOML file
    fingerprint.py     what evidence was made on: devices, libraries, the job's own code
    itinerary.py       walks a run through a list of layouts, one order at a time
    layout.py          degrees of parallelism; which ranks take part
    placement.py       which expert each row of a stack of experts holds (torch-free)
    position.py        the training position: steps, samples, tokens (torch-free)
    profile_folder.py  the folder of one profiled launch
    ranges.py          ranges of numbers, texts and lists on the wire, with units
    recorded_routing.py  what routers of a job chose, as a file (torch-free)
    step_log.py        the step log: one JSON line per training step
    switch.py          the durable state machine of one switch
    switch_spend.py    what a switch spent by phase, read from its evidence
    tables.py          reads TOML tables strictly and collects every mistake
    torch_compat.py    access to torch's private parts
"""
