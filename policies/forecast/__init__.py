"""What the grid will emit (docs/forecast.md). Pure.

The map:
    anchored.py  the anchored profile
    caution.py   hours that nobody can foresee count somewhat dirtier
    far.py       the grid further ahead than a forecast knows anything: its usual day
    learned.py   our own forecast
    lookback.py  what the learned forecast looks at: linear features of the hours before an origin
    memory.py    how far back a grid is worth remembering
    predict.py   what the grid will emit from now on
    series.py    what was observed of one carbon series
    skill.py     measured skill
"""
