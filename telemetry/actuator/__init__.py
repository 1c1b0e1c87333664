"""The actuator: the one part of wattmesh that may change a GPU. A process of its own.

The map:
    rules/        what the actuator may do to a GPU, and for how long (pure)
    __main__.py   its life as a process
    client.py     what the agent and the command line speak to it with
    device.py     the GPUs, each call with a deadline
    engine.py     all of it, without the socket
    journal.py    what must be on disk before a GPU is written
    obeying.py    handed to another journal by root, with or without a running actuator
    processes.py  who uses a GPU, from /proc
    recovery.py   what is ours after a start (pure)
    restore.py    everything back, with or without a running actuator
    server.py     the socket, and the heartbeat
    settings.py   the `[actuator]` table of the settings file, read with the standard library
    wire.py       the words on its socket (pure)
    writing.py    acts become writes; groups whole or not at all

Invariant: it never leaves a GPU changed that nobody asked to keep changed, whoever dies.
"""
