"""AMD SMI's real package on a library of our own.

The map:
    fake.c       the library: boards whose power and counter a test writes into a file
    library.py   builds it, and writes that file
    test_amd.py  what `telemetry/sources/amd.py` makes of it
"""
