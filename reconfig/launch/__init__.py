"""What the processes of one launch are to each other: groups, votes, failures, deadlines, GPUs.

The map:
    attempt.py           who a launch is: the run it continues, and the attempt number that fences
                         older launches
    bounded.py           calls that may never come back (a store, a disk, a group's end), in a
                         thread of their own
    closing.py           how a session and an observed run are let go of
    deadlines.py         how long each phase of a rank's life may last before its watchdog ends the
                         process
    failure_detector.py  what a rank learns of the others while its main thread is busy
    folder.py            what lies in a run's checkpoint folder, and under which names
    generation.py        one generation of a job
    group.py             the process group of one generation
    guard.py             that no failure of ours at a boundary ends a training
    in_step.py           local parts of what all ranks do together, so that they leave it on the
                         same branch
    launch_phase.py      which phase a launch is in, in the words of its heartbeat
    launch_store.py      what ranks tell each other through the launch's store
    launched.py          how this process was launched, as its environment says
    peers.py             the processes of this job on this host
    usage.py             what layouts cost a process in open files and threads, and whether the next
                         one still fits
    watchdog.py          two threads per process that end it when a phase outlives its deadline or a
                         peer has failed
"""
