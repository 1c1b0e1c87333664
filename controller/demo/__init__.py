"""`wattmesh demo`: a recorded grid day moves a small but real training job through real switches.

The map:
    plan.py       every number the demo chooses, in one place
    process.py    the processes it starts and surely ends
    gb-*.csv      recorded grid days (NESO, CC BY 4.0)
    daemon.py     one real daemon with its settings, socket and journal
    job.py        one real training job under the torchrun launcher
    run.py        the whole demo, in the order in which a reader would explain it
    watcher.py    looks at a run as a person would, and gives the operator's order
    facts.py      what is read back from the journal when a run is over; record.py, its types
    report.py     report.json
    evidence.py   the recorded facts that the picture is drawn from
    picture.py    report.png, in a child process
    screen.py     what is said at the start and at the end; progress.py, meanwhile

Invariant: the demo uses the way that users use (the daemon's process, its socket, the launcher);
what is simulated is named wherever it is shown.
"""
