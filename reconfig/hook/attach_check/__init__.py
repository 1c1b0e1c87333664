"""What `wattmesh attach-check` asks of a run, and what it hears of it.

The map:
    check_folder.py   (torch-free) the folder of one check: what is asked, and what was told
    walker.py         inside the run: orders the layouts, and tells
"""
