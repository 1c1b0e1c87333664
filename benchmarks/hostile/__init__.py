"""Hostile input at every door of the product (`python -m benchmarks.hostile`, `make fuzz`)."""
