"""Screens: the answer first, in 80 columns, every figure marked."""
