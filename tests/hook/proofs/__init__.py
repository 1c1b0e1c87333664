"""What ranks prove to each other: the same state, the same data, the same loss."""
