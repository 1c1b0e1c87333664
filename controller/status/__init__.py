"""The status screen's facts, and what needs a human.

The map:
    cap_lines.py  power caps and demand response
    status.py     the facts of `GET /v1/status`
    trouble.py    the sentences that need a human, with what to do
    waiting.py    what a run without steps waits for
"""
