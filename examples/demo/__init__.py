"""`wattmesh demo`: a recorded grid day moves a small but real training job through real switches.

The map:
    daemon.py    runs a real daemon for the demo
    evidence.py  the recorded facts behind the picture
    facts.py     reads a finished run from the journal
    job.py       runs a real training job under torchrun
    picture.py   draws report.png, in a child process
    plan.py      every number the demo chooses, in one place
    progress.py  what the demo prints while it works
    record.py    a finished run of the demo, as types (pure)
    report.py    writes report.json
    run.py       the whole demo, step by step
    screen.py    what the demo prints at its start and its end
    watcher.py   follows a run, and gives the operator's order

Invariant: the demo uses the way that users use (the daemon's process, its socket, the launcher);
what is simulated is named wherever it is shown.
"""
