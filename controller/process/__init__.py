"""What every long-lived process of ours is made of: its start and end, its loops, its clocks.

The map:
    change_signal.py  waking whoever waits for news
    children.py       the processes it starts and surely ends
    kernel_clock.py   whether the kernel calls it synchronised
    life.py           what every process of ours does at its start and end
    loops.py          loops on monotonic time: cycle, sampler, leases, accounts
    notify.py         the service manager's protocol
    scheduler.py      jobs on wall time: polls, retention
    trusted_time.py   may the wall clock be trusted now: who deletes, closes or settles asks
    wall_clock.py     noticing that it was stepped (pure)
"""
