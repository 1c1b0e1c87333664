"""Plans made off the cycle: the planning process, the thread that asks it, and what is shown."""
