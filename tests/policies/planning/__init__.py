"""Plans against slow ways to the same answer, and within every rule."""
