"""Experts: what they cost, where they lie, and a router that knows of it.

cases.py   small problems, and the best placement by trying all
"""
