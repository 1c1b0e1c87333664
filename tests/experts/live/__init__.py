"""Experts of a live job: its costs, its counters, its strength, agreed at a save step."""
