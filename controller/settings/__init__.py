"""The settings file: read, checked, shown.

The map:
    carbon.py           the keys of `[carbon]`: which grid signals to account with and to decide on
    carbon_checks.py    what the keys of one `[carbon]` table must be together
    checks.py           what only several keys together can tell
    journal_address.py  where it is, by the settings
    model.py            every key of the settings file: its type, its default, and what it means
    read.py             read the settings file and check it as a whole, every mistake named at once
    secrets.py          what a file with a secret must be
    section.py          what every table of the settings file has in common, and its kinds of values
    text.py             the settings written out
    words.py            mistakes in the settings as sentences: what was written, and what is allowed
"""
