"""Commands about runs: status, why, runs, and what an operator may ask for.

The map:
    operate.py        freeze, thaw, switch: what an operator may ask for
    quick.py          `wattmesh status` without waiting for the command tree
    runs.py           `wattmesh runs`
    status.py         `wattmesh status`, as the command tree and its help know it
    status_screen.py  what `wattmesh status` looks like
    why.py            `wattmesh why RUN`, `wattmesh decisions`
    why_screen.py     the story of one run
"""
