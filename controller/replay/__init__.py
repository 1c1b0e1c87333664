"""Replay: a run trained over a recorded grid in pure arithmetic, under the live cycle's decisions.

grid.py       a recorded series: values, and grams over any time
world.py      the run: boundaries, switches that take time and fail, what is charged
views.py      the run as the `Observation` that a daemon would make of it
forecasts.py  what is told of the grid ahead: own, perfect, yesterday again, or a file
drivers.py    who steers: our cycle (`cycle/cycle.py`) through its two ports, or a rival rule
bounds.py     the oracle, and the bound below it
regret.py     what our plan lost against hindsight: to the forecast, to planning
bench.py      `wattmesh policy bench`: cells, rows, processes
"""
