"""Profiling: job files, the walk, the numbers, and a real job walked through its layouts."""
