"""The agent: its outbox, its delivery, its relay, and whole agents against a real daemon."""
