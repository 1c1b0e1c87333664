"""Whole daemons, most of them real processes, and what becomes of them when something fails."""
