"""Decisions: pure functions against oracles, adversaries and whole simulated days."""
