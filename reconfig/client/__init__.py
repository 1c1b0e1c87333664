"""The job's side of the protocol with the daemon; training never waits for it.

The map:
    cost_client.py    the thread that carries expert-tokens out and expert costs back
    daemon_client.py  the threads that talk to the daemon for a job, on global rank 0
    figure_log.py     what the run has spent, for experiment trackers
    heartbeat.py      a thread that says every few seconds that the launch is alive
    last_word.py      the supervisor's report of how a run ended, when its launches could not give
                      one
    orderbook.py      the orders of one run
    orders.py         whether an order may be taken at this boundary (pure)
    outbox.py         reports that must arrive
    pace.py           how fast a run trains, and the share of its time in long pauses between steps
    reached.py        the furthest step of a run, for experiment trackers
    reporter.py       who talks to the daemon for a rank
    waking.py         speaks with the daemon for a run that sleeps, from its launcher
"""
