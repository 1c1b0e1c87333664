"""Two daemons on one journal: who leads, what becomes of switches, what the old leader may do."""
