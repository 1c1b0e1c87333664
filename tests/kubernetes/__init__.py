"""Kubernetes, as far as a local server can stand for it.

api_server.py   answers as the API server does: versions, watches, conflicts, rights; and its faults
cluster.py      carries jobs out: pods are processes
dying.py        a pod's program that kills itself at one step
schemas.py      what the objects that we make may look like
"""
