"""What `make` calls.

setup         a .venv with the pinned versions; instant when nothing changed
system-deps   the system programs that tests start (PostgreSQL's server)
reference.py  writes everything in docs/ that is made from code
diagram.py    the picture of the control cycle
pages/        one module per page of docs/reference/
"""
