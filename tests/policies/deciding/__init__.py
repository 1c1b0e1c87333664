"""Decisions: each rule, the deadline guard, and what holds whatever is observed."""
