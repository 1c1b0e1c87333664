"""One file or small folder per outside system; none knows another.

The map:
    carbon/      providers of grid carbon intensity
    torchrun.py  the launcher: starts a training job and starts it again
    systemd/     the unit of the daemon
"""
