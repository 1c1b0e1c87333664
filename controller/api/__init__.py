"""The daemon's HTTP interface: JSON over a Unix socket, for jobs and people on this machine.

The map:
    handlers/           handlers: one module per kind of call
    transport/          sockets, peer credentials, handshakes
    agents_server.py    the TLS server for agents of other nodes
    app.py              the table of routes
    attested.py         calls that an agent makes for a job on its node
    calls.py            reads a request within its limits, writes an answer or an error
    field_docs.py       reads docstrings for the meaning of each field
    openapi.py          the published description, from the table of routes
    request_context.py  what a handler can reach, and the caller it acts for
    server.py           runs the server in its own thread
    speaking.py         which runs an agent may speak for: those of its node
    tokens.py           the tokens of nodes' agents
    waits.py            limits the calls of one user or agent that wait for news
    workers.py          worker threads, shared fairly between callers

Handlers are thin: they read the request, ask the journal or a view, and write the answer.
"""
