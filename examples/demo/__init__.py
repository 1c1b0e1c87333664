"""`wattmesh demo`: a recorded grid day moves a small but real training job through real switches.

The map:
    daemon.py    one real daemon with its settings, socket and journal
    evidence.py  the recorded facts that the picture is drawn from
    facts.py     what is read back from the journal when a run is over; record.py, its types
    job.py       one real training job under the torchrun launcher
    picture.py   report.png, in a child process
    plan.py      every number the demo chooses, in one place
    progress.py  what the demo says while it works
    record.py    what is known of a finished run of the demo, as types (pure)
    report.py    report.json
    run.py       the whole demo, in the order in which a reader would explain it
    screen.py    what is said at the start and at the end; progress.py, meanwhile
    watcher.py   looks at a run as a person would, and gives the operator's order

Invariant: the demo uses the way that users use (the daemon's process, its socket, the launcher);
what is simulated is named wherever it is shown.
"""
