"""An independent audit: independent.py recomputes a saving from raw rows, with nothing of ours."""
