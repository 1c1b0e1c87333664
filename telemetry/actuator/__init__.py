"""The actuator: the one part of wattmesh that may change a GPU. It runs as its own process.

The map:
    rules/        what the actuator may do to a GPU, and for how long (pure)
    __main__.py   the command: start, serve, stop
    client.py     the client that the agent and the command line use
    device.py     NVML behind a protocol, each call with a deadline
    engine.py     takes wishes, reads the GPUs, decides, writes; no socket
    journal.py    the write-ahead file that recovery reads
    obeying.py    root assigns this node to another controller's journal
    processes.py  live processes and their users, from /proc
    recovery.py   which locks and caps are ours after a start (pure)
    restore.py    every GPU back to its baseline, with or without a running actuator
    server.py     the Unix socket, and the heartbeat loop
    settings.py   the `[actuator]` table of the settings file, read with the standard library
    wire.py       the JSON requests on its socket (pure)
    writing.py    carries out decided acts; a group is written whole or not at all

Invariant: it never leaves a GPU changed that nobody asked to keep changed, whoever dies.
"""
