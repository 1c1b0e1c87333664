"""The checkpoint of a switch in place while it is in memory only.

The map:
    across_hosts.py   carries the boxes that ranks need from one host to another
    early_rebuild.py  decides if a rebuild may start before the fsync
    host_memory.py    what one rank has to do with the areas of its host, and where each file lies
    shared_memory.py  a rank's staging area, which its host's other ranks map
    staged.py         the staged copy in these areas: written, read, compared, made durable
"""
