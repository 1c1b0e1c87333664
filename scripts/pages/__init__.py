"""The pages of docs/reference/, each a pure function from our code to Markdown.

cli.py       every command with its help
settings.py  every key of the settings file
metrics.py   every metric of /metrics
errors.py    the tree of errors and what to do about each
switch.py    every state of a switch and what it means
api.py       every call of the HTTP API, and the objects that go in and out
markdown.py  tables, and words that a table can hold
"""
