"""Loss-free balancing takes the published energy term back: `python -m examples.routing` shows it.

Untrained routers on random tokens, on the CPU, in some seconds. The proof is in docs/experts.md.

The map:
    __main__.py  the routers, and what is printed of them
"""
