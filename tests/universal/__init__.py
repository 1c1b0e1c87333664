"""The universal checkpoint: its algebra, its bytes, its damage."""
