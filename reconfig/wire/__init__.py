"""What a run and the daemon tell each other, and how it gets there. Torch-free.

The map:
    experts.py   what a run and the daemon tell each other of expert costs
    link.py      HTTP to the daemon over its Unix socket, with a hard limit on every call
    messages.py  the messages between a run and the daemon
"""
