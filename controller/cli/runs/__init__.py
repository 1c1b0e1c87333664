"""Commands about runs: status, why, runs, and orders of operators.

The map:
    one_screen.py     what is left out of `status` where the terminal is too low
    operate.py        freeze, thaw, retire, switch, reopen
    quick.py          `wattmesh status` without importing the command tree
    runs.py           `wattmesh runs`
    status.py         `wattmesh status` in the command tree
    status_screen.py  the screen of `wattmesh status`
    why.py            `wattmesh why RUN`, `wattmesh decisions`
    why_screen.py     the screen of `wattmesh why`
"""
