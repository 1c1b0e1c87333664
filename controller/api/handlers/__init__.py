"""What the daemon answers: one module per kind of call.

The map:
    agents.py        what a node's agent brings and asks
    caps.py          the operators' power cap: ordered, ended, shown
    deliveries.py    the door for what a node's agent delivers
    flagged.py       rows of the journal as JSON, with what their joules and grams are
    jobs.py          what a run reports: register, progress, transitions, finish
    operators.py     what a person asks for: freeze, thaw, switch
    orders.py        the newest order of a run, long-polled without holding a thread
    reading.py       what anybody on the socket may read
    reports.py       the report of a month, and two acts
    status_board.py  `GET /v1/status`, answered from memory while the journal's server hangs
"""
