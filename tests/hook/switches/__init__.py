"""Switches in place: what they move, what they tear down, and what no failure in them ends."""
