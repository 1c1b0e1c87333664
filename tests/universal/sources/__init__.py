"""Foreign checkpoints: read bit for bit, or refused by one sentence."""
