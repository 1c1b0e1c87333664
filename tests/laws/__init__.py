"""The laws of the design, each a test with a sabotaged twin that must fail.

sources.py           our modules, parsed once, and what each of them imports and calls
import_law.py        which room may import which: pure, over a graph of names
test_imports.py      that law on the real graph; no circles; every outside package is declared
processes.py         what a fresh process has loaded
test_loaded.py       what a fresh process has really loaded: the daemon, the command line, the hook
test_purity.py       policies and the switch machine touch no clock, no file, no network
test_pickle.py       no pickle is executed
"""
