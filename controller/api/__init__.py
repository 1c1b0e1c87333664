"""The daemon's HTTP interface: JSON over a Unix socket, for jobs and people on this machine.

    sockets.py    bind the socket ourselves: mode, group, and never two daemons on one path
    peers.py      who is at the other end, as the kernel says; slow clients are cut off
    desk.py       everything a handler may reach, and on whose behalf
    calls.py      one request in: its JSON, its limits; one answer out: its JSON, its errors
    orders.py     the newest order of a run, long-polled without holding a thread
    jobs.py       what a run reports: register, progress, transitions, finish
    operators.py  what a person asks for: freeze, thaw, switch
    agents.py     what a node's agent brings and asks
    attested.py   calls that an agent makes for somebody on its node
    agents_server.py  the way in for agents of other nodes: TLS and a token
    handshakes.py how many may have connected there without TLS yet
    reading.py    what anybody on the socket may read
    flagged.py    rows of the journal as JSON, with what their joules and grams are
    workers.py    the threads that carry out calls, shared fairly between those who call
    openapi.py    the published description, from the same table of routes
    app.py        the table of routes
    server.py     the server in a thread of its own

Handlers are thin: they read the request, ask the journal or a view, and write the answer.
"""
