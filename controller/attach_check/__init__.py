"""`wattmesh attach-check`: a user's own attached script is walked through layouts, here and now.

The map:
    judge.py   what was told, as findings that a person can act on (pure)
    run.py     starts the script, waits for the end of the walk, says why it could not be walked
"""
