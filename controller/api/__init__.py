"""The daemon's HTTP interface: JSON over a Unix socket, for jobs and people on this machine.

The map:
    handlers/           what the daemon answers: one module per kind of call
    transport/          sockets, who is at the other end, and handshakes
    agents_server.py    the way in for agents of other nodes: TLS and a token
    app.py              the table of routes
    attested.py         calls that an agent makes for somebody on its node
    calls.py            one request in: its JSON, its limits; one answer out: its JSON, its errors
    field_docs.py       what docstrings say of each field, for that description
    openapi.py          the published description, from the same table of routes
    request_context.py  everything a handler may reach, and on whose behalf
    server.py           the server in a thread of its own
    speaking.py         for which runs a node's agent may speak: for those of its own node
    tokens.py           tokens of nodes' agents
    waits.py            calls that wait: so many of one user, or of one node's agent, and no more
    workers.py          the threads that carry out calls, shared fairly between those who call

Handlers are thin: they read the request, ask the journal or a view, and write the answer.
"""
