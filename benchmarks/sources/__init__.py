"""Which checkpoints of others are read bit for bit, and which are refused.

The map:
    cases.py    what is saved: layouts, dtypes, optimizers, forms and writers
    compare.py  reads a case, compares it with what the ranks held, and spoils it
    ranks.py    four ranks that save every case, and load it again in two other layouts
"""
