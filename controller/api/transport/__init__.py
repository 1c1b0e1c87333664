"""Sockets, peer credentials, handshakes, certificates.

The map:
    certificate.py  reads the life of a certificate
    handshakes.py   a listening socket that limits connections without a finished TLS handshake
    peers.py        the process at the other end, by the kernel; slow clients are cut off
    sockets.py      binds the Unix socket: mode, group, one daemon per path
"""
