"""`wattmesh configs search`, `predict` and `measured`: layouts that nobody has trained yet.

The map:
    predicting.py      what the three commands do
    screen.py          what a search found, as JSON and as a screen (pure)
    mixed_screen.py    what a search over two classes of GPUs found (pure)
    counts_screen.py   equal counts of experts beside counts by speed, on two classes (pure)
    ranking_screen.py  what measuring each point of a search would save (pure)
    picture.py         the picture of a search, drawn in a child process
"""
