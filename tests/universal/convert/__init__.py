"""Conversions: what is written, virtual or physical, and what a kill in the middle leaves."""
