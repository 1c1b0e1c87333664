"""Launches of a run: attempts, restarts, sleep, other sizes, lost ranks and hosts."""
