"""Predictions of what a layout costs, for people: files in, files out.

The map:
    asked_search.py     what a search is asked for: model, cluster, batch
    csv_files.py        tables of configurations: read, and written with their predictions
    fitted.py           the fitted cost model that the package carries
    live_rows.py        what a live run measured, as rows of such a table
    measured_gain.py    what a user's own measured steps do for predictions (pure)
    next_point.py       which point a profile measures next: a child process
    profile_ranking.py  what measuring a search's points would save, for a grid and a deadline
"""
