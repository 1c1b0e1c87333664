"""The handlers: one module per kind of call.

The map:
    agents.py        calls of a node's agent
    caps.py          the operators' power cap: order, end, show
    deliveries.py    checks what a node's agent delivers
    experts.py       expert-tokens in, expert costs out
    flagged.py       journal rows as JSON, with the flags of their joules and grams
    jobs.py          what a run reports: register, progress, transitions, finish
    operators.py     calls of operators: freeze, thaw, switch
    orders.py        the newest order of a run, long-polled without holding a thread
    placement.py     places the experts of a run anew
    reading.py       calls that only read
    reports.py       the report of a month, and the calls that reopen and replan
    status_board.py  `GET /v1/status`, answered from memory when the journal hangs
"""
