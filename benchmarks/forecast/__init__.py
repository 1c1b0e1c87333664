"""How right our forecast of carbon intensity is, on recorded zones and years.

The map:
    __main__.py  errors, gains and coverage
    data.py      recorded series as hours without false values
    dayahead.py  with wind, sun and weather, beside DACF's own
    score.py     one zone: ours beside the profile, a day ago, the last value
"""
