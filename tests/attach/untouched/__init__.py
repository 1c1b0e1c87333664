"""What observing leaves as it was: random streams, optimizers, the process."""
