"""How failures and calls that never return end a launch, and what is said of them.

The map:
    bounded.py           calls that may never return (store, disk, end of a group), each in its own
                         thread
    deadlines.py         how long each phase of a rank's life may last before its watchdog ends the
                         process
    failure_detector.py  what a rank learns of the others while its main thread is busy
    script_line.py       the line of the user's own script that an error came through
    watchdog.py          two threads per process that end it when a phase outlives its deadline or a
                         peer has failed
"""
