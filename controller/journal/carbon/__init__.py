"""What the journal keeps of grid signals: points and forecasts.

The map:
    forecasts.py  forecasts as they were issued, and the skill of their sources
    points.py     what was observed of the grid, append-only, and how its polls went
"""
