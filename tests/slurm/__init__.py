"""Slurm jobs that follow each other: pure parts, and all of it on a real Slurm."""
