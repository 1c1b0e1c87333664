"""What a checkpoint is exported to, read back by those whose formats they are."""
