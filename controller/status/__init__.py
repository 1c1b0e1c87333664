"""The whole daemon on one screen, and what is wrong with it.

The map:
    status.py   the whole daemon on one screen
    trouble.py  what needs a human, and what to do
    waiting.py  what a run that takes no step waits for
"""
