"""Saving and loading through torch's distributed checkpoint."""
