"""A plain FSDP2 script with the lines that let wattmesh measure and move it; nothing else of ours.

The map:
    __main__.py   the script
    profile.toml  what `wattmesh configs profile` measures it by
"""
