"""Coordination of one launch's processes: groups, votes, failures, deadlines, GPUs.

The map:
    attempt.py           who a launch is: the run it continues, and the attempt number that fences
                         older launches
    bounded.py           calls that may never return (store, disk, end of a group), each in its own
                         thread
    closing.py           how a session and an observed run end
    deadlines.py         how long each phase of a rank's life may last before its watchdog ends the
                         process
    failure_detector.py  what a rank learns of the others while its main thread is busy
    folder.py            the contents of a run's checkpoint folder, and their names
    generation.py        one generation of a job
    group.py             the process group of one generation
    guard.py             keeps failures of ours at a boundary from ending a training
    in_step.py           local parts of collective work, so that all ranks take the same branch
    launch_phase.py      the phase of a launch, in the words of its heartbeat
    launch_store.py      messages between ranks through the launch's store
    launched.py          how this process was launched, from its environment
    peers.py             the processes of this job on this host
    script_line.py       the line of the user's own script that an error came through
    usage.py             open files and threads that layouts need, and whether the next one still
                         fits
    watchdog.py          two threads per process that end it when a phase outlives its deadline or a
                         peer has failed
"""
