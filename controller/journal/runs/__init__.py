"""Runs in the journal: launches, switches, history.

The map:
    admission.py         who may register a run and speak for it, and how it ends
    doubtful_runs.py     runs that began while the wall clock was in doubt
    expert_learning.py   what was learned of expert costs, kept over a restart
    frozen_catalogue.py  a run's catalogue, as it was at registration
    introduced.py        what a registration writes into a run's row (pure)
    liveness.py          the newest sign of life of each run, in memory
    outages.py           the share of its time that a run stood in unordered outages
    run_nodes.py         the nodes that a run's calls come from
    run_row.py           one run as the journal stores it
    run_store.py         what runs report, freezes, operators' orders
    seen_processes.py    the process of each run on this host, as the kernel named it
    sleeps.py            what the journal keeps of a run that sleeps
    signs.py             receives signs of life, and writes them at intervals
    stays.py             the point of each run over time, and its launches
    switches.py          switches (the intent row is the order) and their states
"""
