"""Measured figures, each beside the goal it is held to.

    python -m benchmarks.<name> [--json]     one benchmark: a table, or one JSON object
    make bench                               all of them: benchmarks/results/*.json, docs/results.md

The map:
    checkpoint/             what converting and loading a checkpoint costs
    checkpoint_equality.py  every tensor through every way of a checkpoint, bit for bit
    cluster.py              several runs under one cap and one budget
    cost_model/             how well the cost model predicts runs that it has not seen
    daemon/                 what the daemon costs: memory, start, processor, answers
    energy/                 how right the energy ledger is where the true energy is known
    equivalence/            whether a switched run trains the same model: hours, kept and gone on
                            with
    experts/                routers that know what GPUs cost: loss, modelled energy
    failover/               the leader vanishes in the middle of a switch
    forecast/               how right our forecast of the grid is, on recorded zones
    gpu/                    what only a GPU can show; a run of its own (`make gpu`), with its JSON
    hostile/                what strangers may send: crashes, refusals, memory and time
    placement/              where experts lie, beside the exact best
    planner/                how long a plan takes and how near to the best it is, beside HiGHS
    quiet_day/              how many lines a quiet day leaves in the logs
    safety/                 who gives GPUs back when something vanishes, and how soon
    sampling.py             what measuring costs: the sampler, and the controller it reports to
    scale/                  what 1,000 runs on 10,000 GPUs cost
    search.py               how fast layouts are searched
    slurm_moves.py          who trains on when a part vanishes while a job changes size on Slurm
    soak/                   an hour of faults around a real job; not part of `make bench`
    sources/                which checkpoints of others are read bit for bit, which refused
    switch/                 what moving a job between layouts costs; --part bytes, hosts, soak
    switch_copy.py          what the bytes of a switch cost without a job, over memcpy
    switch_hosts.py         what crosses between two hosts, over a plain socket copy
    switch_heap.py          many switches with heap checks of glibc on
    year/                   a whole year of a site under a virtual clock

    report.py               what every benchmark hands in, and how it is printed
    machine.py              the machine a figure was measured on
    usage.py                what a process or a call used of the machine
    run_all.py              runs every benchmark of this folder and writes docs/results.md
    results_page.py         that page

A benchmark is a module, or a package's `__main__.py`, with `measure() -> Report` and, under
`if __name__ == "__main__"`, `sys.exit(run(measure))`. It exits 0 when it ran, whatever it
measured: a goal that was missed is a row that says so, not a crash.
"""
