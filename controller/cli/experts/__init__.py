"""Commands about experts: what they cost, where they should lie, what that is worth.

The map:
    experts.py         the commands
    group_worth.py     what counts by speed and leaning are worth on a group of GPUs
    group_screen.py    the screens of `costs` and `bench`
    costs_file.py      reads what counters showed, and scores the GPUs
    json_file.py       reads a JSON file that a person names
    placement_file.py  reads a file of routing, and writes a placement
    recorded_run.py    finds the recording of a run
    placement_screen.py  the screen of `place`
"""
