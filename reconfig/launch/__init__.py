"""Coordination of one launch's processes: groups, votes, failures, GPUs.

The map:
    failures/            how failures and calls that never return end a launch
    asleep.py            what a run leaves in its folder while it sleeps
    attempt.py           who a launch is: the run it continues, and the attempt number that fences
                         older launches
    closing.py           how a session and an observed run end
    folder.py            the contents of a run's checkpoint folder, and their names
    generation.py        one generation of a job
    group.py             the process group of one generation
    guard.py             keeps failures of ours at a boundary from ending a training
    in_step.py           local parts of collective work, so that all ranks take the same branch
    launch_phase.py      the phase of a launch, in the words of its heartbeat
    launch_store.py      messages between ranks through the launch's store
    launched.py          how this process was launched, from its environment
    peers.py             the processes of this job on this host
    usage.py             open files and threads that layouts need, and whether the next one still
                         fits
"""
