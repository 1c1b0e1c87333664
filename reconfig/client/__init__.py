"""What a job and the daemon say to each other, from the job's side; training never waits for it.

The map:
    daemon_client.py  the threads that talk to the daemon for a job, on global rank 0
    heartbeat.py      the thread that says every few seconds that the launch lives, whatever its
                      training does
    last_word.py      how a run ended whose launches could not say it, from their supervisor
    orderbook.py      the orders of one run
    orders.py         whether an order may be taken at this boundary (pure)
    outbox.py         reports that must arrive
    pace.py           how fast a run trains, and how much of its time goes by in long pauses between
                      two steps
    reached.py        how far a run ever trained, for experiment trackers
    reporter.py       who speaks to the daemon for a rank
"""
