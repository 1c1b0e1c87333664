"""What every long-lived process shares: its start and end, its loops, its clocks.

The map:
    change_signal.py  wakes threads that wait for news
    children.py       child processes that certainly end with their parent
    cycle_first.py    threads that compute beside the cycle give way to it
    kernel_clock.py   asks the kernel whether the wall clock is synchronised
    life.py           start and end of a process
    loops.py          loops on monotonic time: cycle, sampler, leases, accounts
    notify.py         the service manager's protocol
    scheduler.py      jobs at wall-clock times: polls, retention
    trusted_time.py   whether the wall clock may be trusted, before anything is deleted, closed or
                      settled
    wall_clock.py     detects steps of the wall clock (pure)
"""
