"""Measured figures, each beside the goal it is held to.

    python -m benchmarks.<name> [--json]     one benchmark: a table, or one JSON object
    make bench                               all of them: benchmarks/results/*.json, docs/results.md

daemon.py        what the daemon costs: memory, start, processor, answers
equivalence.py   whether a switched run trains the same model: hours, kept and gone on with
experts.py       routers that know what GPUs cost: loss, modelled energy; experts_*.py, expert_*.py
placement.py     where experts lie, beside the exact best; placement_exact.py
forecast.py      how right our forecast of the grid is, on recorded zones; forecast_*.py
planner.py       how long a plan takes and how near to the best it is; planner_peers.py: HiGHS
switch.py        what moving a job between layouts costs; --part bytes, --part soak
switch_copy.py   what the bytes of a switch cost without a job around them, over memcpy
slurm_moves.py   who trains on when a part vanishes while a job goes to another size on Slurm
gpu/             what only a GPU can show; a run of its own (`make gpu`), with its JSON
soak.py          an hour of faults around a real job; a run of its own, not part of `make bench`

report.py        what every benchmark hands in, and how it is printed
machine.py       the machine a figure was measured on
run_all.py       runs every benchmark of this folder and writes docs/results.md
results_page.py  that page

A benchmark is a module with `measure() -> Report` and, under `if __name__ == "__main__"`,
`sys.exit(run(measure))`. It exits 0 when it ran, whatever it measured: a goal that was
missed is a row that says so, not a crash.
"""
