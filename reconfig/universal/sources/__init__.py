"""Checkpoints that others wrote, read without torch and without running anything they hold."""
