"""`wattmesh attach-check`: runs a user's attached script through several layouts.

The map:
    judge.py   turns what the script reported into findings (pure)
    run.py     starts the script, waits for it, says why it could not run
"""
