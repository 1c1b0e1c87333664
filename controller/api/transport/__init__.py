"""Sockets, who is at the other end, and handshakes.

The map:
    handshakes.py  a listening socket that bounds who has connected and not yet shown that it speaks
                   TLS
    peers.py       who is at the other end, as the kernel says; slow clients are cut off
    sockets.py     bind the socket ourselves: mode, group, and never two daemons on one path
"""
