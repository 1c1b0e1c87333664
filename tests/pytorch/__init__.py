"""The building blocks of five dimensions, where they need no process group."""
