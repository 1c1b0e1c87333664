"""What the hook saves: whole or not at all, in files and in memory, with a proven digest."""
