"""An agent's outbox, and how the daemon takes, refuses and keeps what it delivers."""
