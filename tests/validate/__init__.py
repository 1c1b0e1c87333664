"""Validation: what a job proves of its points, and what never is."""
