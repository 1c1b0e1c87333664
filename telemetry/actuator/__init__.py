"""The actuator: the one part of wattmesh that may change a GPU. A process of its own.

Invariant: it never leaves a GPU changed that nobody asked to keep changed, whoever dies.

The map:
    settings.py    the `[actuator]` table of the settings file, read with the standard library
    facts.py       what is seen of a GPU, what is ours there, what is to be done (pure types)
    wire.py        the words on its socket (pure)
    leases.py      how long a wish holds (pure)
    fence.py       whom it obeys: one journal, and its newest epoch (pure)
    refusals.py    why a wish is not obeyed (pure)
    watching.py    whether what we wrote is still in force (pure)
    rules.py       what is written next (pure)
    recovery.py    what is ours after a start (pure)
    journal.py     what must be on disk before a GPU is written
    processes.py   who uses a GPU, from /proc
    clock.py       the machine's clocks
    device.py      the GPUs, each call with a deadline
    writing.py     acts become writes; groups whole or not at all
    engine.py      all of it, without the socket
    server.py      the socket, and the heartbeat
    client.py      what the agent and the command line speak to it with
    restore.py     everything back, with or without a running actuator
    obeying.py     handed to another journal by root, with or without a running actuator
    __main__.py    its life as a process
"""
