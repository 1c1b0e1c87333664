"""What the hook tells the daemon and hears of it, whatever the daemon does."""
