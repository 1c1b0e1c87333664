"""Experts: what they cost, where they lie, and a router that knows of it.

agree_job.py  two ranks that fetched different costs
cases.py      small problems, and the best placement by trying all
"""
