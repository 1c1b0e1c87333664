"""Weeks of a simulated year around its interesting borders, through the real daemon's parts."""
